//! Plain HTTP requests.

use std::io::{Read as _, Write as _};
use std::net::TcpStream;
use std::time::Duration;

/// Status and body of a GET; `None` when nobody answers.
pub(crate) fn get(address: &str, path: &str) -> Option<(u16, String)> {
    let mut stream = TcpStream::connect(address).ok()?;
    stream.set_read_timeout(Some(Duration::from_secs(10))).ok()?;
    write!(stream, "GET {path} HTTP/1.0\r\nHost: {address}\r\n\r\n").ok()?;
    let mut answer = String::new();
    stream.read_to_string(&mut answer).ok()?;
    let (head, body) = answer.split_once("\r\n\r\n")?;
    let status = head.split_whitespace().nth(1)?.parse().ok()?;
    Some((status, body.to_owned()))
}

/// The value of a metric without labels.
#[track_caller]
pub(crate) fn metric(address: &str, name: &str) -> f64 {
    let (status, body) = get(address, "/metrics").unwrap();
    assert_eq!(status, 200, "{body}");
    let line = body.lines().find(|line| line.strip_prefix(name).is_some_and(|rest| rest.starts_with(' ')));
    line.unwrap_or_else(|| panic!("{name} is missing in: {body}"))
        .rsplit(' ')
        .next()
        .unwrap()
        .parse()
        .unwrap()
}
