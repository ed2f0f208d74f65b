//! Packets of JSON with file descriptors on `SOCK_SEQPACKET` sockets, for processes that fork guests.

use std::io::{IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{BorrowedFd, OwnedFd};

use rustix::net::{
    AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, ReturnFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags, SocketFlags, SocketType,
};
use serde::Serialize;
use serde::de::DeserializeOwned;
use tokio::io::Interest;
use tokio::io::unix::AsyncFd;

/// The largest packet, in bytes. Its sender is untrusted.
const PACKET_BYTES: usize = 64 << 10;
/// Most descriptors in a packet.
const FDS: usize = 4;

/// The two ends of such a socket.
///
/// # Errors
/// When the system has none left.
pub(crate) fn pair() -> std::io::Result<(OwnedFd, OwnedFd)> {
    Ok(rustix::net::socketpair(
        AddressFamily::UNIX,
        SocketType::SEQPACKET,
        SocketFlags::CLOEXEC,
        None,
    )?)
}

/// Lets tasks wait for a descriptor.
#[expect(
    deprecated,
    reason = "the replacement is unsafe; an `OwnedFd` is open for as long as it is watched, which is what it asks for"
)]
pub(crate) fn watched(fd: OwnedFd, interest: Interest) -> std::io::Result<AsyncFd<OwnedFd>> {
    AsyncFd::with_interest(fd, interest)
}

/// Sends a packet with at most [`FDS`] descriptors.
pub(crate) async fn send(
    control: &AsyncFd<OwnedFd>,
    order: &impl Serialize,
    fds: &[BorrowedFd<'_>],
) -> std::io::Result<()> {
    let packet = serde_json::to_vec(order)?;
    control
        .async_io(Interest::WRITABLE, |control| {
            let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(FDS))];
            let mut ancillary = SendAncillaryBuffer::new(&mut space);
            if !fds.is_empty() {
                ancillary.push(SendAncillaryMessage::ScmRights(fds));
            }
            let flags = SendFlags::NOSIGNAL | SendFlags::DONTWAIT;
            rustix::net::sendmsg(control, &[IoSlice::new(&packet)], &mut ancillary, flags)?;
            Ok(())
        })
        .await
}

/// A packet with its descriptors; `None` when the other end is closed. Descriptors are missing if this process has no room for
/// them.
pub(crate) async fn receive<T: DeserializeOwned>(
    control: &AsyncFd<OwnedFd>,
) -> std::io::Result<Option<(T, Vec<OwnedFd>)>> {
    let mut packet = vec![0; PACKET_BYTES];
    let (bytes, fds) = control
        .async_io(Interest::READABLE, |control| {
            let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(FDS))];
            let mut ancillary = RecvAncillaryBuffer::new(&mut space);
            let flags = RecvFlags::CMSG_CLOEXEC | RecvFlags::DONTWAIT;
            let received = rustix::net::recvmsg(control, &mut [IoSliceMut::new(&mut packet)], &mut ancillary, flags)?;
            if received.flags.contains(ReturnFlags::TRUNC) {
                return Err(std::io::Error::other("a packet that is too large"));
            }
            let fds = ancillary
                .drain()
                .filter_map(|message| match message {
                    RecvAncillaryMessage::ScmRights(fds) => Some(fds),
                    _ => None,
                })
                .flatten()
                .collect();
            Ok((received.bytes, fds))
        })
        .await?;
    if bytes == 0 {
        return Ok(None);
    }
    Ok(Some((serde_json::from_slice(&packet[..bytes])?, fds)))
}
