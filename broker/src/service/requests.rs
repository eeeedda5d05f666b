//! The messages of a request's body. Each has a buffer of its own, as large as it
//! is: a stream that is idle holds none.

use bytes::{Bytes, BytesMut};
use futures_util::{Stream, stream};
use http_body_util::BodyExt;
use prost::Message;
use tonic::Status;
use tonic::body::Body;

/// Compression flag and length before each message.
const HEADER: usize = 5;

/// What came of the message that has begun.
#[derive(Debug, Default)]
struct Begun {
    header: [u8; HEADER],
    header_len: usize,
    message: BytesMut,
}

/// The messages, none of which is compressed. Each comes once it is whole; what
/// gives the body has bounded its length. Ends after an error.
pub fn messages<T: Message + Default>(body: Body) -> impl Stream<Item = Result<T, Status>> + Send {
    let from = Some((body, Begun::default(), Bytes::new()));
    stream::unfold(from, async |from| {
        let (mut body, mut begun, mut rest) = from?;
        let message = loop {
            match begun.take(&mut rest) {
                Ok(Some(message)) => break message,
                Ok(None) => {}
                Err(status) => return Some((Err(status), None)),
            }
            match body.frame().await {
                Some(Ok(frame)) => rest = frame.into_data().unwrap_or_default(),
                Some(Err(status)) => return Some((Err(status), None)),
                None if begun.header_len == 0 => return None,
                None => return Some((Err(Status::internal("the body ends within a message")), None)),
            }
        };
        match T::decode(message) {
            Ok(message) => Some((Ok(message), Some((body, begun, rest)))),
            Err(error) => {
                let text = format!("the request cannot be decoded: {error}");
                Some((Err(Status::internal(text)), None))
            }
        }
    })
}

impl Begun {
    /// The message, if it is whole with this.
    fn take(&mut self, rest: &mut Bytes) -> Result<Option<Bytes>, Status> {
        let header = rest.split_to(rest.len().min(HEADER - self.header_len));
        let end = self.header_len + header.len();
        self.header[self.header_len..end].copy_from_slice(&header);
        self.header_len = end;
        if end < HEADER {
            return Ok(None);
        }
        let [flag, length @ ..] = self.header;
        if flag != 0 {
            return Err(Status::unimplemented("a message is compressed: send it as it is"));
        }
        let length = u32::from_be_bytes(length) as usize;
        if self.message.capacity() == 0 {
            self.message.reserve(length);
        }
        self.message.extend_from_slice(&rest.split_to(rest.len().min(length - self.message.len())));
        if self.message.len() < length {
            return Ok(None);
        }
        self.header_len = 0;
        Ok(Some(std::mem::take(&mut self.message).freeze()))
    }
}

#[cfg(test)]
mod tests {
    use futures_util::{StreamExt, TryStreamExt};
    use http_body::Frame;
    use http_body_util::StreamBody;
    use proptest::prelude::*;
    use quire_proto::v1;

    use super::*;

    fn metadata(topics: &[&str]) -> v1::MetadataRequest {
        v1::MetadataRequest { topics: topics.iter().map(|&topic| topic.to_owned()).collect() }
    }

    fn framed(request: &v1::MetadataRequest) -> Vec<u8> {
        let body = request.encode_to_vec();
        [&[0][..], &u32::try_from(body.len()).unwrap().to_be_bytes(), &body].concat()
    }

    async fn all(bytes: &[u8], cut: usize) -> Result<Vec<v1::MetadataRequest>, Status> {
        let frames: Vec<_> = bytes
            .chunks(cut)
            .map(|piece| Ok::<_, Status>(Frame::data(Bytes::copy_from_slice(piece))))
            .collect();
        messages(Body::new(StreamBody::new(stream::iter(frames)))).try_collect().await
    }

    #[tokio::test]
    async fn what_is_no_message_ends_it() {
        let good = framed(&metadata(&["a"]));
        let cases = [
            [&good[..], &good[..5]].concat(),
            [&good[..], &[1, 0, 0, 0, 0]].concat(),
            [&good[..], &[0, 0, 0, 0, 1, 0xff], &good[..]].concat(),
        ];
        for bytes in cases {
            let frame = Ok::<_, Status>(Frame::data(Bytes::from(bytes)));
            let read: Vec<Result<v1::MetadataRequest, _>> =
                messages(Body::new(StreamBody::new(stream::iter([frame])))).collect().await;
            assert!(matches!(&read[..], [Ok(_), Err(_)]), "{read:?}");
        }
    }

    proptest! {
        #[test]
        fn messages_are_read_however_they_are_cut(
            topics in proptest::collection::vec(proptest::collection::vec("[a-z]{0,9}", 0..4), 0..6),
            cut in 1..40_usize,
        ) {
            let sent: Vec<_> =
                topics.iter().map(|topics| metadata(&topics.iter().map(|topic| &**topic).collect::<Vec<_>>())).collect();
            let bytes: Vec<u8> = sent.iter().flat_map(framed).collect();
            let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
            prop_assert_eq!(runtime.block_on(all(&bytes, cut)).unwrap(), sent);
        }
    }
}
