//! LogService.

use std::collections::HashSet;
use std::sync::Arc;

use futures_util::StreamExt;
use futures_util::stream::{self, Empty};
use quire_metadata::id_block::IdKind;
use quire_metadata::operations::ids;
use quire_proto::id::Nonce;
use quire_proto::v1;
use quire_proto::v1::log_service_server::LogService;
use tonic::{Request, Response, Status, Streaming};
use uuid::Uuid;

use crate::catalog::TopicEntry;
use crate::failure::{self, Failure};
use crate::log::partition::Standing;
use crate::service::connection::Peer;
use crate::service::{Door, check_names};

/// What a topic takes in an answer beside its name, and each of its partitions.
const TOPIC_BYTES: usize = 128;
const LEADER_BYTES: usize = 10;

/// What an offset takes in an answer, or why there is none.
const OFFSET_BYTES: usize = 512;

/// Offsets that one request looks up at once.
const LOOKUPS: usize = 16;

/// LogService on a broker.
#[derive(Clone, Debug)]
pub struct Records(pub Arc<Door>);

#[tonic::async_trait]
impl LogService for Records {
    async fn metadata(
        &self,
        request: Request<v1::MetadataRequest>,
    ) -> Result<Response<v1::MetadataResponse>, Status> {
        self.0.check_open()?;
        let (_, extensions, v1::MetadataRequest { topics: mut asked }) = request.into_parts();
        check_names(asked.iter().map(String::as_str))?;
        let mut named = HashSet::new();
        asked.retain(|name| named.insert(name.clone()));
        let catalog = &self.0.catalog;
        let entries = if asked.is_empty() {
            catalog.all().into_iter().map(|entry| (entry.topic.name.to_string(), Ok(entry))).collect()
        } else {
            asked.into_iter().map(|name| (name.clone(), catalog.topic(&name))).collect::<Vec<_>>()
        };
        let bytes = |(name, found): &(String, Result<Arc<TopicEntry>, Failure>)| match found {
            Ok(entry) => TOPIC_BYTES + name.len() + entry.partitions.len() * LEADER_BYTES,
            Err(failure) => TOPIC_BYTES + name.len() + failure.message.len(),
        };
        let room = self.0.replies.room(entries.iter().map(bytes).sum(), extensions.get(), None).await?;
        let describe = |(name, found): (String, Result<Arc<TopicEntry>, Failure>)| match found {
            Ok(entry) => describe(&entry),
            Err(failure) => v1::TopicMetadata { name, error: Some(failure.into()), ..Default::default() },
        };
        let options = &self.0.context.options;
        let brokers = vec![v1::BrokerAddress { id: options.id.clone(), address: options.address.clone() }];
        let topics = entries.into_iter().map(describe).collect();
        Ok(room.response(extensions.get(), v1::MetadataResponse { brokers, topics }))
    }

    async fn init_producer(
        &self,
        _request: Request<v1::InitProducerRequest>,
    ) -> Result<Response<v1::InitProducerResponse>, Status> {
        self.0.check_open()?;
        let id = self.0.producer_id().await?;
        Ok(Response::new(v1::InitProducerResponse { producer_id: id, producer_epoch: 0 }))
    }

    async fn produce(
        &self,
        request: Request<v1::ProduceRequest>,
    ) -> Result<Response<v1::ProduceResponse>, Status> {
        // The extensions hold the memory that the request arrived in.
        let (_, extensions, request) = request.into_parts();
        let peer = extensions.get::<Peer>().cloned();
        let submitted = self.0.submit(request, peer.as_ref()).await?;
        drop(extensions);
        let (answer, room) = submitted.finish().await;
        Ok(match room {
            Some(room) => room.response(peer.as_ref(), answer),
            None => Response::new(answer),
        })
    }

    type ProduceStreamStream = Empty<Result<v1::ProduceResponse, Status>>;

    async fn produce_stream(
        &self,
        _request: Request<Streaming<v1::ProduceRequest>>,
    ) -> Result<Response<Self::ProduceStreamStream>, Status> {
        Err(not_here())
    }

    async fn fetch(
        &self,
        _request: Request<v1::FetchRequest>,
    ) -> Result<Response<v1::FetchResponse>, Status> {
        Err(not_here())
    }

    type SubscribeStream = Empty<Result<v1::SubscribeResponse, Status>>;

    async fn subscribe(
        &self,
        _request: Request<Streaming<v1::SubscribeRequest>>,
    ) -> Result<Response<Self::SubscribeStream>, Status> {
        Err(not_here())
    }

    async fn list_offsets(
        &self,
        request: Request<v1::ListOffsetsRequest>,
    ) -> Result<Response<v1::ListOffsetsResponse>, Status> {
        let (_, extensions, v1::ListOffsetsRequest { partitions }) = request.into_parts();
        check_names(partitions.iter().map(|asked| &*asked.topic))?;
        let bytes = partitions.iter().map(|asked| OFFSET_BYTES + asked.topic.len()).sum();
        let room = self.0.replies.room(bytes, extensions.get(), None).await?;
        let lookups = partitions.into_iter().map(|asked| {
            let door = Arc::clone(&self.0);
            async move { door.list_offset(asked).await }
        });
        let results = stream::iter(lookups).buffered(LOOKUPS).collect().await;
        Ok(room.response(extensions.get(), v1::ListOffsetsResponse { results }))
    }
}

/// `service::door` answers this. What it leaves is compressed, and refused before
/// it comes here.
fn not_here() -> Status {
    Status::unimplemented("this is served by another way only")
}

fn describe(entry: &TopicEntry) -> v1::TopicMetadata {
    // This broker is the only one in the list.
    let leader = |standing| match standing {
        Standing::Leading | Standing::Recovering => 0,
        Standing::Deposed | Standing::Deleted => -1,
    };
    v1::TopicMetadata {
        name: entry.topic.name.to_string(),
        error: None,
        id: entry.topic.id.0.as_bytes().to_vec().into(),
        leaders: entry.partitions.iter().map(|log| leader(log.standing().0)).collect(),
        max_message_bytes: entry.topic.config.max_message_bytes,
    }
}

/// Producer ids of one block.
const PRODUCERS: u64 = 1_000;

/// Producer ids that this process holds and has not given out. Never given out
/// again by anybody, also not after a restart.
#[derive(Debug, Default)]
pub struct ProducerIds {
    left: std::sync::Mutex<std::ops::Range<u64>>,
}

impl ProducerIds {
    fn next(&self) -> Option<u64> {
        self.left.lock().unwrap_or_else(std::sync::PoisonError::into_inner).next()
    }

    fn refill(&self, ids: std::ops::Range<u64>) {
        *self.left.lock().unwrap_or_else(std::sync::PoisonError::into_inner) = ids;
    }
}

impl Door {
    async fn producer_id(&self) -> Result<i64, Status> {
        loop {
            if let Some(id) = self.producers.next() {
                return i64::try_from(id).map_err(|_| failure::internal("producer ids are used up").into());
            }
            let context = &self.context;
            let attempt = Nonce(Uuid::new_v4());
            let block = ids::allocate_block(
                &*context.store,
                &context.keys,
                IdKind::Producers,
                PRODUCERS,
                &context.process,
                attempt,
            );
            let block = block.await.map_err(|error| failure::metadata("allocating producer ids", &error))?;
            self.producers.refill(block.block.value.ids());
        }
    }
}
