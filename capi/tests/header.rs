//! `tagore.h`, compared with what cbindgen makes of the sources.

use std::fs;
use std::path::Path;

#[test]
fn the_header_is_that_of_the_sources() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let config = cbindgen::Config::from_file(root.join("cbindgen.toml")).unwrap();
    let bindings = cbindgen::Builder::new().with_crate(root).with_config(config).generate().unwrap();
    let mut made = Vec::new();
    bindings.write(&mut made);
    let (made, file) = (with_plain_pointers(&String::from_utf8(made).unwrap()), root.join("tagore.h"));
    if std::env::var_os("TAGORE_WRITE_API").is_some() {
        fs::write(&file, &made).unwrap();
    }
    let header = fs::read_to_string(&file).unwrap_or_default().replace("\r\n", "\n");
    let differs = made.lines().zip(header.lines()).find(|(made, header)| made != header);
    assert!(
        made == header,
        "tagore.h differs from the sources, first at {differs:?}; if that is intended, run TAGORE_WRITE_API=1 cargo \
         test -p tagore-capi, and note it in CHANGELOG.md"
    );
}

/// The header with plain pointers in place of `Input` and `Output`, which hold one each and of
/// which cbindgen makes a type per target: `typedef const char *Input_c_char;`, after a comment.
fn with_plain_pointers(made: &str) -> String {
    let mut header = made.to_owned();
    for line in made.lines().filter(|line| line.starts_with("typedef ")) {
        let Some((target, name)) = line["typedef ".len()..].trim_end_matches(';').rsplit_once('*') else {
            continue;
        };
        if name.starts_with("Input_") || name.starts_with("Output_") {
            let Some(end) = header.find(line) else { continue };
            let Some(comment) = header[..end].rfind("/**") else { continue };
            header.replace_range(comment..end + line.len() + "\n\n".len(), "");
            header = header.replace(&format!("{name} "), &format!("{target}*"));
        }
    }
    header
}
