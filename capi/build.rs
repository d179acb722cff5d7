//! The name by which programs find the shared library when they start.

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    match std::env::var("CARGO_CFG_TARGET_OS").as_deref() {
        Ok("macos" | "ios") => {
            println!("cargo::rustc-cdylib-link-arg=-Wl,-install_name,@rpath/libtagore.0.dylib");
        }
        Ok("windows") => {}
        _ => println!("cargo::rustc-cdylib-link-arg=-Wl,-soname,libtagore.so.0"),
    }
}
