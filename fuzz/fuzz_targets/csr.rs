#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| tagore_fuzz::read_several(tagore::IndexFormat::Csr, data));
