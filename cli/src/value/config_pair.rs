//! `KEY=VALUE` of a topic's configuration.

use std::str::FromStr;

/// One setting of a topic.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct ConfigPair {
    pub(crate) key: String,
    pub(crate) value: String,
}

impl FromStr for ConfigPair {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text.split_once('=') {
            Some((key, value)) if !key.is_empty() => {
                Ok(ConfigPair { key: key.to_owned(), value: value.to_owned() })
            }
            _ => Err("KEY=VALUE is wanted, such as segment.bytes=268435456 (a configuration file is given \
                      before the command: quire --config FILE topic create …)"
                .to_owned()),
        }
    }
}
