//! Generates the messages and the service from the files in `proto`, and the set of their descriptors.

use std::error::Error;
use std::path::PathBuf;
use std::{env, fs};

use prost::Message;

const SERVICE: &str = "envoy/service/ratelimit/v3/rls.proto";
/// The files that only annotate others. Reflection serves them; no message refers to their types.
const ANNOTATIONS: [&str; 4] = ["envoy/annotations/", "udpa/", "validate/", "xds/annotations/"];

fn main() -> Result<(), Box<dyn Error>> {
    println!("cargo::rerun-if-changed=proto");
    let out = PathBuf::from(env::var_os("OUT_DIR").ok_or("cargo sets OUT_DIR")?);
    let mut descriptors = protox::compile([SERVICE], ["proto"])?;
    // The comments are in another format, and some look like tests.
    descriptors.file.iter_mut().for_each(|file| file.source_code_info = None);
    fs::write(out.join("descriptors.bin"), descriptors.encode_to_vec())?;
    descriptors.file.retain(|file| !ANNOTATIONS.iter().any(|folder| file.name().starts_with(folder)));
    tonic_prost_build::configure()
        .include_file("messages.rs")
        // The client connects by any channel: `connect` would need the feature `channel` of tonic.
        .build_transport(false)
        .compile_fds(descriptors)?;
    Ok(())
}
