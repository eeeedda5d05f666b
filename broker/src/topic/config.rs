//! Topic configuration, by the field's names. A key that has no effect here is
//! refused, so that nobody relies on it.

use std::collections::BTreeMap;
use std::time::Duration;

/// A batch may be at most this large, whatever a topic says: with its entry
/// header it must fit a record.
pub const MESSAGE_BYTES_LIMIT: u32 = 15 << 20;

/// A topic's configuration with defaults filled in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TopicConfig {
    /// `segment.bytes`: a ledger with this many bytes is rolled.
    pub segment_bytes: u64,
    /// `segment.ms`: a ledger of this age is rolled.
    pub segment_age: Duration,
    /// `max.message.bytes`: the largest batch.
    pub max_message_bytes: u32,
    /// `message.timestamp.type`: whether the broker's clock replaces the
    /// producer's.
    pub log_append_time: bool,
}

/// Why a topic configuration is not valid.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum InvalidConfig {
    #[error("config key {key:?} is unknown or has no effect; valid keys: {}", KEYS.join(", "))]
    UnknownKey { key: String },
    #[error("config {key}={value:?}: {expected}")]
    Value { key: &'static str, value: String, expected: String },
}

const SEGMENT_BYTES: &str = "segment.bytes";
const SEGMENT_MS: &str = "segment.ms";
const MAX_MESSAGE_BYTES: &str = "max.message.bytes";
const COMPRESSION_TYPE: &str = "compression.type";
const TIMESTAMP_TYPE: &str = "message.timestamp.type";

/// All keys, sorted.
pub const KEYS: [&str; 5] = [COMPRESSION_TYPE, MAX_MESSAGE_BYTES, TIMESTAMP_TYPE, SEGMENT_BYTES, SEGMENT_MS];

const SEGMENT_BYTES_RANGE: (u64, u64) = (1 << 10, 1 << 40);
const SEGMENT_MS_RANGE: (u64, u64) = (1_000, 7 * 24 * 3600 * 1000);
const MAX_MESSAGE_RANGE: (u64, u64) = (1 << 10, MESSAGE_BYTES_LIMIT as u64);

impl Default for TopicConfig {
    fn default() -> Self {
        Self {
            segment_bytes: 1 << 30,
            segment_age: Duration::from_millis(SEGMENT_MS_RANGE.1),
            max_message_bytes: 1 << 20,
            log_append_time: false,
        }
    }
}

impl TopicConfig {
    /// Reads what was set.
    ///
    /// # Errors
    /// The first key that is not known or whose value is out of range.
    pub fn parse(set: &BTreeMap<String, String>) -> Result<Self, InvalidConfig> {
        let mut config = Self::default();
        for (key, value) in set {
            config.set(key, value)?;
        }
        Ok(config)
    }

    fn set(&mut self, key: &str, value: &str) -> Result<(), InvalidConfig> {
        match key {
            SEGMENT_BYTES => self.segment_bytes = number(SEGMENT_BYTES, value, SEGMENT_BYTES_RANGE)?,
            SEGMENT_MS => {
                self.segment_age = Duration::from_millis(number(SEGMENT_MS, value, SEGMENT_MS_RANGE)?);
            }
            MAX_MESSAGE_BYTES => {
                let bytes = number(MAX_MESSAGE_BYTES, value, MAX_MESSAGE_RANGE)?;
                self.max_message_bytes = u32::try_from(bytes).unwrap_or(MESSAGE_BYTES_LIMIT);
            }
            COMPRESSION_TYPE => {
                one_of(COMPRESSION_TYPE, value, &["producer"])?;
            }
            TIMESTAMP_TYPE => {
                self.log_append_time = one_of(TIMESTAMP_TYPE, value, &["CreateTime", "LogAppendTime"])? == 1;
            }
            _ => return Err(InvalidConfig::UnknownKey { key: key.to_owned() }),
        }
        Ok(())
    }

    /// Every key that has an effect, with its value.
    #[must_use]
    pub fn entries(&self) -> [(&'static str, String); KEYS.len()] {
        let timestamp_type = if self.log_append_time { "LogAppendTime" } else { "CreateTime" };
        [
            (COMPRESSION_TYPE, "producer".to_owned()),
            (MAX_MESSAGE_BYTES, self.max_message_bytes.to_string()),
            (TIMESTAMP_TYPE, timestamp_type.to_owned()),
            (SEGMENT_BYTES, self.segment_bytes.to_string()),
            (SEGMENT_MS, self.segment_age.as_millis().to_string()),
        ]
    }
}

fn number(key: &'static str, value: &str, (least, most): (u64, u64)) -> Result<u64, InvalidConfig> {
    value.parse().ok().filter(|number| (least..=most).contains(number)).ok_or_else(|| InvalidConfig::Value {
        key,
        value: value.to_owned(),
        expected: format!("must be a whole number from {least} to {most}"),
    })
}

fn one_of(key: &'static str, value: &str, values: &[&str]) -> Result<usize, InvalidConfig> {
    values.iter().position(|valid| *valid == value).ok_or_else(|| InvalidConfig::Value {
        key,
        value: value.to_owned(),
        expected: format!("must be {}", values.join(" or ")),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(key: &str, value: &str, expected: Result<TopicConfig, &str>) {
        let set = BTreeMap::from([(key.to_owned(), value.to_owned())]);
        let parsed = TopicConfig::parse(&set).map_err(|error| error.to_string());
        assert_eq!(parsed.as_ref().map_err(String::as_str), expected.as_ref().map_err(|text| *text));
    }

    #[test]
    fn keys_with_an_effect() {
        let default = TopicConfig::default();
        check("segment.bytes", "4096", Ok(TopicConfig { segment_bytes: 4096, ..default }));
        check("segment.ms", "60000", Ok(TopicConfig { segment_age: Duration::from_secs(60), ..default }));
        check("max.message.bytes", "2048", Ok(TopicConfig { max_message_bytes: 2048, ..default }));
        check("compression.type", "producer", Ok(default));
        check("message.timestamp.type", "CreateTime", Ok(default));
        check(
            "message.timestamp.type",
            "LogAppendTime",
            Ok(TopicConfig { log_append_time: true, ..default }),
        );
    }

    #[test]
    fn anything_else_is_refused() {
        check(
            "retention.ms",
            "1",
            Err("config key \"retention.ms\" is unknown or has no effect; valid keys: compression.type, \
                 max.message.bytes, message.timestamp.type, segment.bytes, segment.ms"),
        );
        check("compression.type", "gzip", Err("config compression.type=\"gzip\": must be producer"));
        check(
            "max.message.bytes",
            "99999999999",
            Err("config max.message.bytes=\"99999999999\": must be a whole number from 1024 to 15728640"),
        );
        check(
            "segment.bytes",
            "-1",
            Err("config segment.bytes=\"-1\": must be a whole number from 1024 to 1099511627776"),
        );
    }

    #[test]
    fn what_is_listed_is_what_was_set() {
        let config = TopicConfig { segment_bytes: 4096, log_append_time: true, ..TopicConfig::default() };
        let listed: BTreeMap<_, _> =
            config.entries().into_iter().map(|(key, value)| (key.to_owned(), value)).collect();
        assert_eq!(TopicConfig::parse(&listed), Ok(config));
        assert_eq!(listed.keys().map(String::as_str).collect::<Vec<_>>(), KEYS);
    }
}
