//! Tests of atomic files.

use super::*;

fn names(folder: &Path) -> Vec<String> {
    let entries = fs::read_dir(folder).unwrap();
    entries.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect()
}

#[test]
fn a_committed_file_replaces_its_target() {
    let dir = tempfile::tempdir().unwrap();
    let target = dir.path().join("out.bin");
    fs::write(&target, "old").unwrap();
    let mut file = AtomicFile::create(&target).unwrap();
    file.write_all(b"new").unwrap();
    assert_eq!(fs::read(&target).unwrap(), b"old", "the target changed before the commit");
    file.commit().unwrap();
    assert_eq!(fs::read(&target).unwrap(), b"new");
    assert_eq!(names(dir.path()), ["out.bin"]);
}

#[test]
fn a_dropped_file_leaves_nothing() {
    let dir = tempfile::tempdir().unwrap();
    let mut file = AtomicFile::create(&dir.path().join("out.bin")).unwrap();
    file.write_all(&[7; 3 << 20]).unwrap();
    drop(file);
    assert!(names(dir.path()).is_empty());
}

#[test]
fn commit_all_replaces_an_older_set() {
    let dir = tempfile::tempdir().unwrap();
    let path = |name: &str| dir.path().join(name);
    ["codes", "extra", "index"].into_iter().for_each(|name| fs::write(path(name), "old").unwrap());
    let written = |name| {
        let mut file = AtomicFile::create(&path(name)).unwrap();
        file.write_all(b"new").unwrap();
        file
    };
    // The second file cannot be renamed; the older index is already deleted.
    let files = vec![written("codes"), written("index")];
    fs::remove_file(path("codes")).unwrap();
    fs::create_dir(path("codes")).unwrap();
    AtomicFile::commit_all(files, &[path("extra")]).unwrap_err();
    assert_eq!(names(dir.path()), ["codes"]);
    fs::remove_dir(path("codes")).unwrap();
    AtomicFile::commit_all(vec![written("codes"), written("index")], &[path("extra")]).unwrap();
    let mut found = names(dir.path());
    found.sort();
    assert_eq!(found, ["codes", "index"]);
}

#[test]
fn commit_replacing_deletes_stale_files() {
    let dir = tempfile::tempdir().unwrap();
    let path = |name: &str| dir.path().join(name);
    ["index", "report"].into_iter().for_each(|name| fs::write(path(name), "old").unwrap());
    let mut file = AtomicFile::create(&path("index")).unwrap();
    file.write_all(b"new").unwrap();
    assert!(path("report").exists(), "deleted before the commit");
    file.commit_replacing(&[path("report"), path("none")]).unwrap();
    assert_eq!(names(dir.path()), ["index"]);
    assert_eq!(fs::read(path("index")).unwrap(), b"new");
    // A link is kept.
    #[cfg(unix)]
    {
        fs::write(path("elsewhere"), "old").unwrap();
        std::os::unix::fs::symlink("elsewhere", path("report")).unwrap();
        let file = AtomicFile::create(&path("index")).unwrap();
        file.commit_replacing(&[path("report")]).unwrap();
        assert!(path("report").exists());
    }
}

#[test]
fn errors_name_the_target() {
    let dir = tempfile::tempdir().unwrap();
    let target = dir.path().join("missing").join("out.bin");
    let missing = dir.path().join("missing");
    let expected = "expected an existing folder: create it, or name another";
    let error = check_output(&target).unwrap_err().to_string();
    assert_eq!(
        error,
        format!("{}: found no such folder {}, {expected}", target.display(), missing.display())
    );
    let error = check_output(dir.path()).unwrap_err().to_string();
    assert_eq!(error, format!("{}: found a folder, expected a file to write", dir.path().display()));
    assert!(check_output("..").is_err() && check_output("/").is_err() && check_output("").is_err());
    check_output(dir.path().join("x".repeat(255))).unwrap();
    #[cfg(unix)]
    check_output(dir.path().join("x".repeat(256))).unwrap_err();
    assert!(names(dir.path()).is_empty());
}

#[test]
fn stale_temporary_files_are_removed_and_second_writers_refused() {
    let dir = tempfile::tempdir().unwrap();
    let target = dir.path().join("out.bin");
    fs::write(temporary_path(&target), "half of a fi").unwrap();
    let mut file = AtomicFile::create(&target).unwrap();
    file.write_all(b"new").unwrap();
    let error = AtomicFile::create(&target).unwrap_err().to_string();
    assert!(error.contains("found another run writing it"), "{error}");
    file.commit().unwrap();
    assert_eq!(fs::read(&target).unwrap(), b"new");
    assert_eq!(names(dir.path()), ["out.bin"]);
}

#[cfg(unix)]
#[test]
fn target_links_are_followed_and_temporary_links_replaced() {
    use std::os::unix::fs::symlink;
    let dir = tempfile::tempdir().unwrap();
    let path = |name: &str| dir.path().join(name);
    fs::create_dir(path("far")).unwrap();
    fs::write(path("far/file"), "old").unwrap();
    symlink(path("far/file"), path("link")).unwrap();
    let write = |name: &str| {
        let mut file = AtomicFile::create(&path(name))?;
        file.write_all(b"new")?;
        file.commit()
    };
    write("link").unwrap();
    assert!(fs::symlink_metadata(path("link")).unwrap().is_symlink());
    assert_eq!(fs::read(path("far/file")).unwrap(), b"new");
    symlink(path("nothing"), path("dangling")).unwrap();
    let error = write("dangling").unwrap_err().to_string();
    assert!(error.contains("found a dangling symbolic link"), "{error}");
    fs::write(path("private"), "kept").unwrap();
    symlink(path("private"), temporary_path(&path("out"))).unwrap();
    write("out").unwrap();
    assert_eq!(fs::read(path("private")).unwrap(), b"kept");
    assert_eq!(fs::read(path("out")).unwrap(), b"new");
    assert_eq!(names(&path("far")), ["file"]);
}

#[cfg(unix)]
#[test]
fn permissions_follow_the_umask() {
    use std::os::unix::fs::PermissionsExt;
    let dir = tempfile::tempdir().unwrap();
    let (plain, target) = (dir.path().join("plain"), dir.path().join("atomic"));
    fs::write(&plain, "").unwrap();
    AtomicFile::create(&target).unwrap().commit().unwrap();
    let mode = |path: &Path| fs::metadata(path).unwrap().permissions().mode();
    assert_eq!(mode(&target), mode(&plain));
}
