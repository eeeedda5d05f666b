//! Compiles the stored values with a protobuf compiler written in Rust, so that
//! no `protoc` is needed.

use std::error::Error;

fn main() -> Result<(), Box<dyn Error>> {
    println!("cargo:rerun-if-changed=proto");
    let descriptors = protox::compile(["quire/metadata/v1/metadata.proto"], ["proto"])?;
    // Sorted maps: the same value always has the same bytes.
    prost_build::Config::new().bytes(["."]).btree_map(["."]).compile_fds(descriptors)?;
    Ok(())
}
