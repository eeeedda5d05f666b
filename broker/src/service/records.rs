//! LogService.

use std::sync::Arc;

use futures_util::StreamExt;
use futures_util::stream::{self, BoxStream};
use quire_metadata::id_block::IdKind;
use quire_metadata::operations::ids;
use quire_proto::id::Nonce;
use quire_proto::v1;
use quire_proto::v1::log_service_server::LogService;
use tokio::sync::mpsc;
use tokio_stream::wrappers::ReceiverStream;
use tonic::{Request, Response, Status, Streaming};
use uuid::Uuid;

use crate::catalog::TopicEntry;
use crate::failure;
use crate::log::partition::Standing;
use crate::service::fetch::{Fetched, PARTITIONS_MAX};
use crate::service::{Door, produce_stream, subscribe};

/// Responses that wait for a stream's client.
const RESPONSES: usize = 64;

/// Pushed messages that wait for a subscription's client.
const PUSHED: usize = 2;

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
        let asked = request.into_inner().topics;
        if asked.len() > PARTITIONS_MAX {
            return Err(
                failure::invalid(format!("a request may name at most {PARTITIONS_MAX} topics")).into()
            );
        }
        let topics = if asked.is_empty() {
            self.0.catalog.all().iter().map(|entry| describe(entry)).collect()
        } else {
            let find = |name: String| match self.0.catalog.topic(&name) {
                Ok(entry) => describe(&entry),
                Err(failure) => {
                    v1::TopicMetadata { name, error: Some(failure.into()), ..v1::TopicMetadata::default() }
                }
            };
            asked.into_iter().map(find).collect()
        };
        let options = &self.0.context.options;
        let brokers = vec![v1::BrokerAddress { id: options.id.clone(), address: options.address.clone() }];
        Ok(Response::new(v1::MetadataResponse { brokers, topics }))
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
        Ok(Response::new(self.0.produce(request.into_inner()).await))
    }

    type ProduceStreamStream = ReceiverStream<Result<v1::ProduceResponse, Status>>;

    async fn produce_stream(
        &self,
        request: Request<Streaming<v1::ProduceRequest>>,
    ) -> Result<Response<Self::ProduceStreamStream>, Status> {
        self.0.check_open()?;
        let (tx, rx) = mpsc::channel(RESPONSES);
        let serve = produce_stream::run(Arc::clone(&self.0), request.into_inner(), tx);
        self.0.context.spawn(serve);
        Ok(Response::new(ReceiverStream::new(rx)))
    }

    async fn fetch(&self, request: Request<v1::FetchRequest>) -> Result<Response<v1::FetchResponse>, Status> {
        let request = request.into_inner();
        let results = self.0.fetch(&request).await?.into_iter().map(Fetched::into_result).collect();
        Ok(Response::new(v1::FetchResponse { results }))
    }

    type SubscribeStream = BoxStream<'static, Result<v1::SubscribeResponse, Status>>;

    async fn subscribe(
        &self,
        request: Request<Streaming<v1::SubscribeRequest>>,
    ) -> Result<Response<Self::SubscribeStream>, Status> {
        self.0.check_open()?;
        let (tx, rx) = mpsc::channel(PUSHED);
        let serve = subscribe::run(Arc::clone(&self.0), request.into_inner(), tx);
        self.0.context.spawn(serve);
        let pushed = ReceiverStream::new(rx).map(|fetched: Result<Vec<Fetched>, Status>| {
            let results = fetched?.into_iter().map(Fetched::into_result).collect();
            Ok(v1::SubscribeResponse { results })
        });
        Ok(Response::new(pushed.boxed()))
    }

    async fn list_offsets(
        &self,
        request: Request<v1::ListOffsetsRequest>,
    ) -> Result<Response<v1::ListOffsetsResponse>, Status> {
        let partitions = request.into_inner().partitions;
        if partitions.len() > PARTITIONS_MAX {
            return Err(
                failure::invalid(format!("a request may name at most {PARTITIONS_MAX} partitions")).into()
            );
        }
        let lookups = partitions.into_iter().map(|asked| {
            let door = Arc::clone(&self.0);
            async move { door.list_offset(asked).await }
        });
        let results = stream::iter(lookups).buffered(LOOKUPS).collect().await;
        Ok(Response::new(v1::ListOffsetsResponse { results }))
    }
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
