//! A record as one line of JSON.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use serde::Serialize;

use super::format::RecordView;

/// Bytes that are text are a string; others are base64 under a name that says
/// so.
#[derive(Debug, Serialize)]
struct JsonRecord<'a> {
    topic: &'a str,
    partition: u32,
    offset: u64,
    timestamp_ms: i64,
    #[serde(flatten)]
    key: Key<'a>,
    #[serde(flatten)]
    value: Value<'a>,
    headers: Vec<JsonHeader<'a>>,
}

#[derive(Debug, Serialize)]
struct JsonHeader<'a> {
    #[serde(flatten)]
    key: Key<'a>,
    #[serde(flatten)]
    value: Value<'a>,
}

#[derive(Debug, Serialize)]
enum Key<'a> {
    #[serde(rename = "key")]
    Text(Option<&'a str>),
    #[serde(rename = "key_base64")]
    Bytes(String),
}

#[derive(Debug, Serialize)]
enum Value<'a> {
    #[serde(rename = "value")]
    Text(Option<&'a str>),
    #[serde(rename = "value_base64")]
    Bytes(String),
}

/// Appends the record and a newline.
///
/// # Errors
/// None of a vector's; the serializer's.
pub(super) fn write(record: &RecordView<'_>, out: &mut Vec<u8>) -> serde_json::Result<()> {
    let json = JsonRecord {
        topic: record.topic,
        partition: record.partition,
        offset: record.offset,
        timestamp_ms: record.timestamp_ms,
        key: key(record.key),
        value: value(record.value),
        headers: record
            .headers
            .iter()
            .map(|(name, text)| JsonHeader { key: key(Some(name)), value: value(*text) })
            .collect(),
    };
    serde_json::to_writer(&mut *out, &json)?;
    out.push(b'\n');
    Ok(())
}

fn key(bytes: Option<&[u8]>) -> Key<'_> {
    text(bytes).map_or_else(Key::Bytes, Key::Text)
}

fn value(bytes: Option<&[u8]>) -> Value<'_> {
    text(bytes).map_or_else(Value::Bytes, Value::Text)
}

fn text(bytes: Option<&[u8]>) -> Result<Option<&str>, String> {
    let Some(bytes) = bytes else { return Ok(None) };
    std::str::from_utf8(bytes).map(Some).map_err(|_| STANDARD.encode(bytes))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(record: &RecordView<'_>, expected: &str) {
        let mut out = Vec::new();
        write(record, &mut out).unwrap();
        assert_eq!(String::from_utf8(out).unwrap(), format!("{expected}\n"));
    }

    #[test]
    fn text_null_and_bytes_are_told_apart() {
        let record = RecordView {
            topic: "t",
            partition: 1,
            offset: 2,
            timestamp_ms: 3,
            key: None,
            value: Some(b"v\n"),
            headers: &[(b"h", Some(b"x")), (b"n", None)],
        };
        check(
            &record,
            r#"{"topic":"t","partition":1,"offset":2,"timestamp_ms":3,"key":null,"value":"v\n","headers":[{"key":"h","value":"x"},{"key":"n","value":null}]}"#,
        );
        check(
            &RecordView { key: Some(b""), value: Some(b"\xff\xfe"), headers: &[], ..record },
            r#"{"topic":"t","partition":1,"offset":2,"timestamp_ms":3,"key":"","value_base64":"//4=","headers":[]}"#,
        );
    }
}
