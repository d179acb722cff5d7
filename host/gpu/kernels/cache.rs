//! The file of compiled kernels in the user's cache folder.
//!
//! One file holds the kernels of one PTX text, for one driver and one compute capability. It is
//! replaced as a whole, and its checksum is compared when it is read: a damaged file is ignored and
//! written again. The driver trusts what it loads, so the file must be the user's own and closed to
//! others, in a folder that others can neither write to nor replace.
//!
//! Layout: [`MAGIC`]; the key; per kernel its name and its image; the CRC-32 of all bytes before.
//! Lengths are u32, little-endian, before each text and image.

use std::collections::BTreeMap;
use std::env;
use std::fs::{self, File, OpenOptions};
use std::io::{self, Read, Write};
use std::path::{Path, PathBuf};
use std::process;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, SystemTime};

use crate::platform;

/// The cache folder; empty for no cache.
const VARIABLE: &str = "TAGORE_CACHE_DIR";

const MAGIC: &[u8; 8] = b"TAGOREK1";

/// Begins the name of every file of kernels.
const PREFIX: &str = "kernels-";

/// Maximum number of files of kernels in the folder. Other versions of program and driver left the
/// others.
const MAX_FILES: usize = 8;

/// Age of a temporary file whose writer must have ended.
const STALE: Duration = Duration::from_secs(3600);

/// Images of kernels by name.
pub(super) type Images = BTreeMap<String, Vec<u8>>;

/// A file of kernels, which need not exist.
#[derive(Debug)]
pub(in crate::gpu) struct CacheFile {
    path: PathBuf,
    key: String,
}

impl CacheFile {
    /// The file of the kernels named by `key`, in the folder of the environment. None if the cache
    /// is off, or the folder cannot be used.
    pub(in crate::gpu) fn in_user_folder(key: String) -> Option<Self> {
        let folder = folder(|name| env::var_os(name).map(PathBuf::from))?;
        let unusable = |error: &io::Error| {
            tracing::debug!(folder = %folder.display(), %error, "kernels are not cached");
        };
        Self::within(&folder, key).inspect_err(unusable).ok()
    }

    /// As [`in_user_folder`](Self::in_user_folder), in `folder`, which is created if it is missing.
    pub(super) fn within(folder: &Path, key: String) -> io::Result<Self> {
        platform::create_private_folders(folder)?;
        platform::check_own_folder(folder)?;
        let name = format!("{PREFIX}{:08x}{:08x}", crc32fast::hash(key.as_bytes()), key.len());
        Ok(Self { path: folder.join(name), key })
    }

    /// The kernels of the file; none if there is no file, or it cannot be trusted.
    pub(super) fn read(&self) -> Images {
        match self.read_whole() {
            Ok(bytes) => parse(&bytes, &self.key).unwrap_or_else(|| {
                tracing::debug!(file = %self.path.display(), "damaged file of kernels ignored");
                Images::new()
            }),
            Err(error) => {
                tracing::debug!(file = %self.path.display(), %error, "no cached kernels");
                Images::new()
            }
        }
    }

    fn read_whole(&self) -> io::Result<Vec<u8>> {
        // A link could lead to any file, a pipe would wait.
        let mut file = platform::unfollowed(OpenOptions::new().read(true)).open(&self.path)?;
        platform::check_own_file(&file)?;
        let mut bytes = Vec::new();
        file.read_to_end(&mut bytes)?;
        Ok(bytes)
    }

    /// Adds `images` to the kernels of the file, which is replaced at once. If two processes add at
    /// the same time, the kernels of one may be lost, and are compiled again when next needed.
    ///
    /// # Errors
    /// If the file cannot be written.
    pub(super) fn add(&self, images: Images) -> io::Result<()> {
        let mut all = self.read();
        all.extend(images);
        static WRITES: AtomicU32 = AtomicU32::new(0);
        let number = WRITES.fetch_add(1, Ordering::Relaxed);
        let temporary = self.path.with_extension(format!("{}-{number}.tmp", process::id()));
        let written = create_private(&temporary)
            .and_then(|mut file| file.write_all(&format(&self.key, &all)))
            .and_then(|()| fs::rename(&temporary, &self.path));
        if written.is_err() {
            // What cannot be deleted either is deleted by a later process.
            let _ = fs::remove_file(&temporary);
        }
        written.inspect(|()| self.remove_old())
    }

    /// Deletes what stopped writers left, and the files used longest ago beyond [`MAX_FILES`].
    fn remove_old(&self) {
        let Some(Ok(entries)) = self.path.parent().map(fs::read_dir) else { return };
        let mut files = Vec::new();
        for entry in entries.flatten() {
            let name = entry.file_name();
            let modified = entry.metadata().and_then(|metadata| metadata.modified());
            if let (true, Ok(modified)) = (name.as_encoded_bytes().starts_with(PREFIX.as_bytes()), modified) {
                files.push((modified, entry.path()));
            }
        }
        files.sort_unstable();
        let is_temporary = |path: &Path| path.extension().is_some_and(|extension| extension == "tmp");
        let is_stale = |modified: SystemTime| modified.elapsed().is_ok_and(|age| age > STALE);
        let (temporary, whole): (Vec<_>, Vec<_>) =
            files.into_iter().partition(|(_, path)| is_temporary(path));
        let stale = temporary.into_iter().filter(|&(modified, _)| is_stale(modified));
        let excess = whole.len().saturating_sub(MAX_FILES);
        for (_, path) in stale.chain(whole.into_iter().take(excess)) {
            // Another process may have deleted it.
            let _ = fs::remove_file(path);
        }
    }
}

/// The cache folder of the environment: that of [`VARIABLE`], else that of the user.
fn folder(variable: impl Fn(&str) -> Option<PathBuf>) -> Option<PathBuf> {
    if let Some(folder) = variable(VARIABLE) {
        return (!folder.as_os_str().is_empty()).then_some(folder);
    }
    let absolute = |name| variable(name).filter(|path| path.is_absolute());
    let of_user = absolute("XDG_CACHE_HOME").or_else(|| Some(absolute("HOME")?.join(".cache")));
    of_user.or_else(|| absolute("LOCALAPPDATA")).map(|folder| folder.join("tagore"))
}

/// The bytes of a file of these kernels.
fn format(key: &str, images: &Images) -> Vec<u8> {
    let mut bytes = MAGIC.to_vec();
    let mut put = |part: &[u8]| {
        bytes.extend((part.len() as u32).to_le_bytes());
        bytes.extend(part);
    };
    put(key.as_bytes());
    for (name, image) in images {
        put(name.as_bytes());
        put(image);
    }
    let checksum = crc32fast::hash(&bytes);
    bytes.extend(checksum.to_le_bytes());
    bytes
}

/// The kernels in the bytes of a file; none if it is damaged or of another key.
fn parse(bytes: &[u8], key: &str) -> Option<Images> {
    let (content, checksum) = bytes.split_last_chunk()?;
    if crc32fast::hash(content) != u32::from_le_bytes(*checksum) {
        return None;
    }
    let mut rest = content.strip_prefix(MAGIC)?;
    let mut part = || {
        let (len, after) = rest.split_first_chunk()?;
        let (part, after) = after.split_at_checked(u32::from_le_bytes(*len) as usize)?;
        rest = after;
        Some((part, after.is_empty()))
    };
    let (found, mut ended) = part()?;
    if found != key.as_bytes() {
        return None;
    }
    let mut images = Images::new();
    while !ended {
        let name = str::from_utf8(part()?.0).ok()?.to_owned();
        let image;
        (image, ended) = part()?;
        images.insert(name, image.to_vec());
    }
    Some(images)
}

fn create_private(path: &Path) -> io::Result<File> {
    let mut options = OpenOptions::new();
    options.write(true).create_new(true);
    platform::private(&mut options).open(path)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn images(names: &[&str]) -> Images {
        names.iter().map(|name| ((*name).to_owned(), name.repeat(100).into_bytes())).collect()
    }

    fn within(folder: &Path, key: &str) -> CacheFile {
        CacheFile::within(folder, key.to_owned()).unwrap()
    }

    #[test]
    fn kernels_are_kept_and_added_to() {
        let folder = tempfile::tempdir().unwrap();
        let inside = folder.path().join("a/b");
        let file = within(&inside, "driver 1");
        assert_eq!(file.read(), Images::new());
        file.add(images(&["x", "y"])).unwrap();
        file.add(images(&["z"])).unwrap();
        assert_eq!(within(&inside, "driver 1").read(), images(&["x", "y", "z"]));
        assert_eq!(within(&inside, "driver 2").read(), Images::new());
        assert_eq!(fs::read_dir(&inside).unwrap().count(), 1, "a temporary file is left");
        // A file under the name of another key is not taken for it.
        let other = within(&inside, "driver 2");
        fs::copy(&file.path, &other.path).unwrap();
        assert_eq!(other.read(), Images::new());
    }

    #[test]
    fn every_damage_is_noticed_and_written_over() {
        let folder = tempfile::tempdir().unwrap();
        let file = within(folder.path(), "key");
        file.add(images(&["x", "y"])).unwrap();
        let whole = fs::read(&file.path).unwrap();
        for at in 0..whole.len() {
            let mut damaged = whole.clone();
            damaged[at] ^= 1 << (at % 8);
            assert_eq!(parse(&damaged, "key"), None, "byte {at}");
            assert_eq!(parse(&whole[..at], "key"), None, "{at} bytes");
        }
        // A length beyond the file, under a correct checksum.
        let mut long = whole[..whole.len() - 4].to_vec();
        long[8..12].copy_from_slice(&u32::MAX.to_le_bytes());
        long.extend(crc32fast::hash(&long).to_le_bytes());
        assert_eq!(parse(&long, "key"), None);
        fs::write(&file.path, &whole[..40]).unwrap();
        assert_eq!(file.read(), Images::new());
        file.add(images(&["z"])).unwrap();
        assert_eq!(file.read(), images(&["z"]));
    }

    #[test]
    fn concurrent_writers_leave_a_whole_file() {
        let folder = tempfile::tempdir().unwrap();
        let names: Vec<String> = (0..8).map(|writer| format!("kernel_{writer}")).collect();
        std::thread::scope(|scope| {
            for name in &names {
                scope.spawn(|| {
                    let file = within(folder.path(), "key");
                    for _ in 0..20 {
                        file.add(images(&[name])).unwrap();
                        assert_ne!(file.read(), Images::new(), "a half-written file was read");
                    }
                });
            }
        });
        let found = within(folder.path(), "key").read();
        assert!(found.iter().all(|(name, image)| *image == name.repeat(100).into_bytes()));
    }

    #[cfg(unix)]
    #[test]
    fn what_others_could_have_written_is_not_loaded() {
        use std::os::unix::fs::{MetadataExt, PermissionsExt, symlink};
        let folder = tempfile::tempdir().unwrap();
        let file = within(folder.path(), "key");
        file.add(images(&["x"])).unwrap();
        assert_eq!(fs::metadata(&file.path).unwrap().mode() & 0o777, 0o600);
        let set = |path: &Path, mode| fs::set_permissions(path, fs::Permissions::from_mode(mode)).unwrap();
        for mode in [0o620, 0o602, 0o644] {
            set(&file.path, mode);
            assert_eq!(file.read(), Images::new(), "{mode:o}");
        }
        set(&file.path, 0o600);
        assert_eq!(file.read(), images(&["x"]));
        let moved = folder.path().join("moved");
        fs::rename(&file.path, &moved).unwrap();
        symlink(&moved, &file.path).unwrap();
        assert_eq!(file.read(), Images::new(), "a link was followed");
        for mode in [0o770, 0o707] {
            set(folder.path(), mode);
            assert!(CacheFile::within(folder.path(), "key".to_owned()).is_err(), "{mode:o}");
        }
        set(folder.path(), 0o700);
    }

    #[cfg(unix)]
    #[test]
    fn a_folder_that_others_could_replace_is_refused() {
        use std::os::unix::fs::{PermissionsExt, chown, symlink};
        let folder = tempfile::tempdir().unwrap();
        let (above, link) = (folder.path().join("above"), folder.path().join("link"));
        let inside = above.join("a/b");
        let set = |mode| fs::set_permissions(&above, fs::Permissions::from_mode(mode)).unwrap();
        within(&inside, "key");
        symlink(&above, &link).unwrap();
        let is_taken = |path: &Path| CacheFile::within(path, "key".to_owned()).is_ok();
        for (mode, taken) in [(0o755, true), (0o775, false), (0o757, false), (0o1777, true)] {
            set(mode);
            assert_eq!(is_taken(&inside), taken, "{mode:o}");
            assert_eq!(is_taken(&link.join("a/b")), taken, "{mode:o}, through a link");
        }
        if rustix::process::geteuid().is_root() {
            set(0o755);
            chown(&above, Some(1234), None).unwrap();
            assert!(!is_taken(&inside), "a folder of another user above");
        }
    }

    #[test]
    fn a_folder_that_cannot_be_made_is_refused() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("file");
        fs::write(&file, "").unwrap();
        assert!(CacheFile::within(&file, "key".to_owned()).is_err());
        assert!(CacheFile::within(&file.join("inside"), "key".to_owned()).is_err());
    }

    #[test]
    fn the_environment_names_the_folder() {
        let of = |set: &[(&str, &str)]| {
            let set = set.to_vec();
            folder(move |name| set.iter().find(|(set, _)| *set == name).map(|(_, path)| path.into()))
        };
        assert_eq!(of(&[(VARIABLE, "/c"), ("HOME", "/h")]), Some("/c".into()));
        assert_eq!(of(&[(VARIABLE, ""), ("HOME", "/h")]), None);
        assert_eq!(of(&[("XDG_CACHE_HOME", "/x"), ("HOME", "/h")]), Some("/x/tagore".into()));
        // The standard says to ignore a relative path.
        assert_eq!(of(&[("XDG_CACHE_HOME", "x"), ("HOME", "/h")]), Some("/h/.cache/tagore".into()));
        assert_eq!(of(&[]), None);
    }

    #[test]
    fn old_files_go() {
        let folder = tempfile::tempdir().unwrap();
        let left = folder.path().join(format!("{PREFIX}1.2-3.tmp"));
        let kept = folder.path().join("notes");
        for path in [&left, &kept] {
            File::create(path).unwrap().set_modified(SystemTime::UNIX_EPOCH).unwrap();
        }
        for key in 0..MAX_FILES + 3 {
            let file = within(folder.path(), &format!("key {key}"));
            file.add(images(&["x"])).unwrap();
            let age = Duration::from_secs(10_000 - key as u64);
            File::open(&file.path).unwrap().set_modified(SystemTime::now() - age).unwrap();
        }
        assert!(!left.exists() && kept.exists());
        let newest = within(folder.path(), &format!("key {}", MAX_FILES + 2));
        assert_eq!(newest.read(), images(&["x"]));
        assert_eq!(fs::read_dir(folder.path()).unwrap().count(), MAX_FILES + 1);
    }
}
