//! Tests of atomic files.

use super::*;

fn names(folder: &Path) -> Vec<String> {
    let entries = fs::read_dir(folder).unwrap();
    entries.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect()
}

fn sorted_names(folder: &Path) -> Vec<String> {
    let mut names = names(folder);
    names.sort();
    names
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
    // A file that cannot be replaced is found before anything is deleted.
    let files = vec![written("codes"), written("index")];
    fs::remove_file(path("codes")).unwrap();
    fs::create_dir(path("codes")).unwrap();
    AtomicFile::commit_all(files, &[path("extra")]).unwrap_err();
    assert_eq!(sorted_names(dir.path()), ["codes", "extra", "index"]);
    fs::remove_dir(path("codes")).unwrap();
    AtomicFile::commit_all(vec![written("codes"), written("index")], &[path("extra")]).unwrap();
    assert_eq!(sorted_names(dir.path()), ["codes", "index"]);
}

/// Several writers of one file, and of one set of files: those that do not fail leave the file or
/// the set of one of them, and the others name the cause.
#[test]
fn one_of_several_writers_wins() {
    let dir = tempfile::tempdir().unwrap();
    let path = |name: &str| dir.path().join(name);
    let write = |name: &str, writer: u8| {
        let mut file = AtomicFile::create(&path(name))?;
        file.write_all(&[writer; 1000])?;
        Ok(file)
    };
    let file = |writer| write("file", writer)?.commit();
    let set = |writer| AtomicFile::commit_all(vec![write("first", writer)?, write("last", writer)?], &[]);
    for round in 0..150 {
        let work = |writer: u8| if round % 3 == 0 { file(writer) } else { set(writer) };
        let results = std::thread::scope(|scope| {
            let writers: Vec<_> = (0..4).map(|writer| scope.spawn(move || work(writer))).collect();
            writers.into_iter().map(|writer| writer.join().unwrap()).collect::<Vec<Result<()>>>()
        });
        let errors = results.iter().filter_map(|result| result.as_ref().err());
        errors.for_each(|error| {
            assert!(error.to_string().contains("found another run writing it"), "round {round}: {error}");
        });
        let won: Vec<u8> = (0..4).filter(|&writer| results[usize::from(writer)].is_ok()).collect();
        if won.is_empty() {
            continue;
        }
        let names: &[&str] = if round % 3 == 0 { &["file"] } else { &["first", "last"] };
        let found: Vec<_> = names.iter().map(|name| fs::read(path(name)).unwrap()).collect();
        assert!(found.iter().all(|content| *content == found[0]), "round {round}: files of two sets");
        assert!(won.iter().any(|&writer| found[0] == [writer; 1000]), "round {round}: half a file");
    }
    assert!(!names(dir.path()).iter().any(|name| name.starts_with('.')));
}

/// A file that took the name of the target since the start is replaced only if it is regular.
#[cfg(unix)]
#[test]
fn devices_and_links_are_refused_at_the_end_too() {
    let dir = tempfile::tempdir().unwrap();
    let path = |name: &str| dir.path().join(name);
    for name in ["pipe", "link", "folder"] {
        let mut file = AtomicFile::create(&path(name)).unwrap();
        file.write_all(b"new").unwrap();
        match name {
            "pipe" => {
                rustix::fs::mkfifoat(rustix::fs::CWD, path(name), rustix::fs::Mode::RWXU).unwrap();
            }
            "link" => std::os::unix::fs::symlink("nothing", path(name)).unwrap(),
            _ => fs::create_dir(path(name)).unwrap(),
        }
        let error = file.commit().unwrap_err().to_string();
        assert!(error.contains(&format!("found a {name}, expected a regular file to replace")), "{error}");
    }
    assert_eq!(sorted_names(dir.path()), ["folder", "link", "pipe"]);
}

#[cfg(unix)]
#[test]
fn a_file_keeps_the_mode_and_the_owner_of_the_older_one() {
    use std::os::unix::fs::{MetadataExt, PermissionsExt, chown};
    let dir = tempfile::tempdir().unwrap();
    let target = dir.path().join("index");
    fs::write(&target, "old").unwrap();
    let is_root = rustix::process::geteuid().is_root();
    for mode in [0o640, 0o600, 0o664, 0o444] {
        fs::set_permissions(&target, fs::Permissions::from_mode(mode)).unwrap();
        if is_root {
            chown(&target, Some(1234), Some(2345)).unwrap();
        }
        let mut file = AtomicFile::create(&target).unwrap();
        let others = fs::metadata(temporary_path(&target)).unwrap().mode() & 0o077;
        assert_eq!(others, mode & 0o077, "open to others while it is written");
        file.write_all(b"new").unwrap();
        file.commit().unwrap();
        let found = fs::metadata(&target).unwrap();
        assert_eq!(found.mode() & 0o777, mode);
        if is_root {
            assert_eq!((found.uid(), found.gid()), (1234, 2345));
        }
    }
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
    let error = AtomicFile::create(&target).unwrap_err().to_string();
    assert_eq!(
        error,
        format!("{}: found no such folder {}, {expected}", target.display(), missing.display())
    );
    let error = AtomicFile::create(dir.path()).unwrap_err().to_string();
    assert_eq!(error, format!("{}: found a folder, expected a file to write", dir.path().display()));
    assert!(
        AtomicFile::create(Path::new("..")).is_err()
            && AtomicFile::create(Path::new("/")).is_err()
            && AtomicFile::create(Path::new("")).is_err()
    );
    AtomicFile::create(&dir.path().join("x".repeat(255))).unwrap();
    #[cfg(unix)]
    AtomicFile::create(&dir.path().join("x".repeat(256))).unwrap_err();
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
