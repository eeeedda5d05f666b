//! Where something listens.

/// `HOST:PORT`, as it was given.
pub(crate) fn host_and_port(text: &str) -> Result<String, String> {
    match text.rsplit_once(':') {
        Some((host, port)) if !host.is_empty() && !host.contains('/') && port.parse::<u16>().is_ok() => {
            Ok(text.to_owned())
        }
        _ => Err("write HOST:PORT".to_owned()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_has_a_host_and_a_port() {
        for good in ["127.0.0.1:9650", "[::1]:9650", "quire-0.quire:9650"] {
            assert_eq!(host_and_port(good).as_deref(), Ok(good));
        }
        for bad in ["", "x", "x:", ":9650", "x:99999", "http://x:9650"] {
            assert!(host_and_port(bad).is_err(), "{bad}");
        }
    }
}
