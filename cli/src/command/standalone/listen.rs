//! Addresses to listen on.

use std::io;

use tokio::net::TcpListener;

use crate::failure::{Exit, Failure};

/// Listens on this address; `flag` sets it.
///
/// # Errors
/// When the address is none, or is in use.
pub(super) async fn bind(address: &str, flag: &str) -> Result<TcpListener, Failure> {
    TcpListener::bind(address).await.map_err(|error| {
        let remedy = match error.kind() {
            io::ErrorKind::AddrInUse => {
                format!("stop the process that listens there, or give another address to {flag}")
            }
            io::ErrorKind::PermissionDenied => {
                format!("give an address with a port above 1023 to {flag}")
            }
            _ => format!("give HOST:PORT to {flag}, with an address of this machine"),
        };
        let exit = match error.kind() {
            io::ErrorKind::InvalidInput => Exit::Usage,
            _ => Exit::CannotStart,
        };
        let context = format!("cannot listen on {address}");
        Failure::new(exit, anyhow::Error::new(error).context(context)).remedy(remedy)
    })
}

/// The address that was bound, with its port.
///
/// # Errors
/// When the socket does not say.
pub(super) fn address(listener: &TcpListener) -> Result<String, Failure> {
    let address = listener.local_addr().map_err(anyhow::Error::new)?;
    Ok(address.to_string())
}
