//! The folders of this machine whose files clients may load.

use std::fs::File;
use std::io::{self, Read};
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use rustix::fs::{FileType, Mode, OFlags, ResolveFlags, fstat, open, openat2};
use rustix::io::Errno;

/// The message to clients without allowed folders.
const NONE_ALLOWED: &str = "no file can be loaded: the operator of this server has allowed no folder (--allow-folder DIR), and the \
                            client of standard input and output has offered none (roots). Nothing was changed; pass the contents as text";

/// The allowed folders: those of the operator, opened when the program starts, and the roots of a client.
#[derive(Debug, Clone, Default)]
pub struct Folders(Vec<Arc<Folder>>);

#[derive(Debug)]
struct Folder {
    /// The path without links.
    path: PathBuf,
    folder: OwnedFd,
}

impl Folders {
    /// Opens the folders.
    ///
    /// # Errors
    /// A path is no folder.
    pub fn open(paths: &[PathBuf]) -> Result<Self, String> {
        let told = |path: &PathBuf, error: io::Error| format!("--allow-folder {}: {error}", path.display());
        let folders = paths
            .iter()
            .map(|path| Folder::open(path).map_err(|error| told(path, error)));
        Ok(Self(folders.collect::<Result<_, _>>()?))
    }

    /// The same folders and further ones. Those that cannot be opened are left out.
    #[must_use]
    pub fn with(&self, paths: &[PathBuf]) -> Self {
        let further = paths.iter().filter_map(|path| Folder::open(path).ok());
        Self(self.0.iter().cloned().chain(further).collect())
    }

    /// Reads a file, of at most `most` bytes, below one of the folders. A relative path is searched in each folder. Links are
    /// followed as long as they stay below the folder.
    ///
    /// # Errors
    /// A message for the client. It does not tell whether a file outside of the folders exists.
    pub fn read(&self, path: &str, most: u64) -> Result<Vec<u8>, String> {
        if self.0.is_empty() {
            return Err(NONE_ALLOWED.to_owned());
        }
        let asked = Path::new(path);
        let mut refused = None;
        for folder in &self.0 {
            let candidate = if asked.is_absolute() {
                asked.to_owned()
            } else {
                folder.path.join(asked)
            };
            // The file may change after this look. The kernel checks the way again when the file is opened.
            let Some(below) = candidate
                .canonicalize()
                .ok()
                .and_then(|real| Some(real.strip_prefix(&folder.path).ok()?.to_owned()))
            else {
                continue;
            };
            match read_below(folder, &below, most) {
                Ok(bytes) => return Ok(bytes),
                Err(why) => refused = Some(why),
            }
        }
        Err(match refused {
            Some(why) => format!("{path}: {why}. Nothing was changed"),
            None => {
                let folders: Vec<_> = self.0.iter().map(|folder| folder.path.to_string_lossy()).collect();
                let folders = folders.join(", ");
                format!("{path}: there is no such file below the allowed folders ({folders}). Nothing was changed")
            }
        })
    }
}

impl Folder {
    fn open(path: &Path) -> io::Result<Arc<Self>> {
        let path = path.canonicalize()?;
        let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let folder = open(&path, flags, Mode::empty())?;
        Ok(Arc::new(Self { path, folder }))
    }
}

fn read_below(folder: &Folder, path: &Path, most: u64) -> Result<Vec<u8>, String> {
    let resolve = ResolveFlags::BENEATH | ResolveFlags::NO_SYMLINKS | ResolveFlags::NO_MAGICLINKS;
    // A pipe must not block, and a terminal must not become this program's.
    let flags = OFlags::RDONLY | OFlags::NONBLOCK | OFlags::NOCTTY | OFlags::CLOEXEC;
    let path = if path.as_os_str().is_empty() {
        Path::new(".")
    } else {
        path
    };
    let file = openat2(&folder.folder, path, flags, Mode::empty(), resolve).map_err(|error| match error {
        Errno::XDEV | Errno::LOOP => "the file was moved while it was opened".to_owned(),
        error => error.to_string(),
    })?;
    let stat = fstat(&file).map_err(|error| error.to_string())?;
    if FileType::from_raw_mode(stat.st_mode) != FileType::RegularFile {
        return Err("it is no file".to_owned());
    }
    let too_large = || format!("it has more than {most} bytes");
    if u64::try_from(stat.st_size).unwrap_or(u64::MAX) > most {
        return Err(too_large());
    }
    let mut bytes = Vec::new();
    // A file can grow meanwhile.
    let read = File::from(file).take(most + 1).read_to_end(&mut bytes);
    read.map_err(|error| error.to_string())?;
    if bytes.len() as u64 > most {
        return Err(too_large());
    }
    Ok(bytes)
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;

    use rustix::fs::{CWD, FileType, Mode, mknodat};

    use super::Folders;

    #[test]
    fn files_below_the_folders_are_read_and_no_others() {
        let all = tempfile::tempdir().unwrap();
        let (allowed, other) = (all.path().join("allowed"), all.path().join("other"));
        for folder in [&allowed, &other] {
            std::fs::create_dir_all(folder.join("sub")).unwrap();
            std::fs::write(folder.join("sub/a.txt"), "inside").unwrap();
        }
        std::fs::write(all.path().join("secret"), "secret").unwrap();
        let link = |to: &std::path::Path, name: &str| symlink(to, allowed.join(name)).unwrap();
        link("sub/a.txt".as_ref(), "near");
        link(&allowed.join("sub"), "folder");
        link(&all.path().join("secret"), "far");
        link("../secret".as_ref(), "up");
        link(&other, "aside");
        link("loop".as_ref(), "loop");
        mknodat(CWD, allowed.join("pipe"), FileType::Fifo, Mode::RUSR, 0).unwrap();

        let folders = Folders::open(std::slice::from_ref(&allowed)).unwrap();
        let read = |path: &str| folders.read(path, 6);
        let absolute = allowed.join("sub/a.txt");
        for path in [
            "sub/a.txt",
            "./sub/../sub/a.txt",
            "near",
            "folder/a.txt",
            absolute.to_str().unwrap(),
        ] {
            assert_eq!(read(path).unwrap(), b"inside", "{path}");
        }
        let secret = all.path().join("secret");
        for path in [
            "far",
            "up",
            "aside/sub/a.txt",
            "loop",
            "../secret",
            "../other/sub/a.txt",
            "/etc/passwd",
            "/proc/self/environ",
            secret.to_str().unwrap(),
            "",
            ".",
            "sub",
            "pipe",
            "nothing",
            "sub/a.txt/b",
            "a\0b",
        ] {
            let why = read(path).unwrap_err();
            assert!(why.ends_with("Nothing was changed"), "{path}: {why}");
            assert!(!why.contains("secret\"") && !why.contains("root:"), "{path}: {why}");
        }
        // A file that exists elsewhere is told of in the same words as one that does not exist.
        assert_eq!(
            read("/etc/passwd").unwrap_err().replace("/etc/passwd", ""),
            read("/etc/nothing").unwrap_err().replace("/etc/nothing", "")
        );
        assert!(folders.read("sub/a.txt", 5).unwrap_err().contains("more than 5 bytes"));
        // A folder that was allowed stays the one that was allowed.
        std::fs::rename(&allowed, all.path().join("moved")).unwrap();
        symlink(&other, &allowed).unwrap();
        assert!(read("sub/a.txt").is_err());
    }

    #[test]
    fn without_folders_no_file_is_read() {
        assert!(
            Folders::default()
                .read("/etc/passwd", 10)
                .unwrap_err()
                .contains("--allow-folder")
        );
        assert!(
            Folders::open(&["/nowhere/at/all".into()])
                .unwrap_err()
                .contains("/nowhere")
        );
        assert!(Folders::open(&["/etc/passwd".into()]).is_err());
    }
}
