//! All flights that left New York in 2013.

use std::collections::HashMap;
use std::fs::File;
use std::io::Read as _;
use std::path::Path;

use flate2::read::GzDecoder;

/// Data lines of the file.
pub(crate) const LINES: usize = 336_776;
/// The carrier, counted from 1.
const KEY_FIELD: usize = 10;

/// The lines without the header line, each with its newline.
pub(crate) fn load() -> Vec<u8> {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("data/flights.csv.gz");
    let mut text = Vec::new();
    GzDecoder::new(File::open(path).unwrap()).read_to_end(&mut text).unwrap();
    let header = text.iter().position(|&byte| byte == b'\n').unwrap();
    text.drain(..=header);
    assert_eq!(lines(&text).count(), LINES);
    text
}

pub(crate) fn lines(text: &[u8]) -> impl Iterator<Item = &[u8]> {
    text.strip_suffix(b"\n").unwrap_or(text).split(|&byte| byte == b'\n').filter(|line| !line.is_empty())
}

fn key(line: &[u8]) -> &[u8] {
    line.split(|&byte| byte == b',').nth(KEY_FIELD - 1).unwrap()
}

/// The lines of each key, in order.
pub(crate) fn by_key(text: &[u8]) -> HashMap<&[u8], Vec<&[u8]>> {
    let mut groups: HashMap<&[u8], Vec<&[u8]>> = HashMap::new();
    for line in lines(text) {
        groups.entry(key(line)).or_default().push(line);
    }
    groups
}
