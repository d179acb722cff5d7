//! Compiles the rule's kernels to PTX, if a suitable compiler is installed.

use std::process::ExitCode;

use cuda_builder::{CudaBuilder, CudaBuilderError};

fn main() -> ExitCode {
    println!("cargo:rerun-if-changed=device");
    println!("cargo:rerun-if-env-changed=CUDA_BUILDER_RUSTC");
    println!("cargo:rustc-check-cfg=cfg(has_ptx)");
    match CudaBuilder::new("device").build() {
        Ok(ptx) => {
            println!("cargo:rustc-cfg=has_ptx");
            println!("cargo:rustc-env=CUSTOM_RULE_PTX={}", ptx.display());
        }
        Err(missing @ CudaBuilderError::NoToolchain) => {
            println!("cargo:warning={missing}; the rule runs on the CPU");
        }
        Err(problem) => {
            println!("cargo::error={}", problem.to_string().replace('\n', " "));
            return ExitCode::FAILURE;
        }
    }
    ExitCode::SUCCESS
}
