//! The guest's runtime as a package that a kernel's Python imports.

use std::path::Path;
use std::sync::{Arc, LazyLock, Mutex, PoisonError, Weak};

use sandglass_core::Error;
use sandglass_core::guest::FILES;
use sandglass_host::temporary::TemporaryFolder;
use serde_json::json;
use sha2::{Digest, Sha256};

/// The package's name in the kernel, which differs from `sandglass`: the user may have imported another version of that.
pub(super) static NAME: LazyLock<String> = LazyLock::new(|| {
    let mut hash = Sha256::new();
    for (name, text) in FILES {
        hash.update(name);
        hash.update(text);
    }
    let hash = hash.finalize();
    format!(
        "_sandglass_{:02x}{:02x}{:02x}{:02x}",
        hash[0], hash[1], hash[2], hash[3]
    )
});

/// The code that makes a kernel a guest. `attach` fills in its names.
const ATTACH: &str = "
import importlib, sys
if sys.version_info < (3, 11):
    raise RuntimeError(f'guests need Python 3.11 or newer, and this is {sys.version.split()[0]}')
for known, module in list(sys.modules.items()):  # of a host that has left, whose files may be gone
    if known.partition('.')[0] == name and hasattr(module, '__path__'):
        module.__path__ = ['/'.join([folder, *known.split('.')])]
sys.path.insert(0, folder)
try:
    importlib.invalidate_caches()
    kernel = importlib.import_module(f'{name}.native.kernel_guest')
finally:
    sys.path.remove(folder)
kernel.attach(path, token, epoch)
";

/// The files, for kernels of this user. They are gone when the last guest is.
#[derive(Debug)]
pub(super) struct Package(TemporaryFolder);

impl Package {
    pub(super) fn prepared() -> Result<Arc<Self>, Error> {
        static SHARED: Mutex<Weak<Package>> = Mutex::new(Weak::new());
        let mut shared = SHARED.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(package) = shared.upgrade() {
            return Ok(package);
        }
        let package = Self::write().map(Arc::new).map_err(|error| {
            Error::BackendUnavailable(format!(
                "the Python package could not be written to a temporary folder: {error}"
            ))
        })?;
        *shared = Arc::downgrade(&package);
        Ok(package)
    }

    fn write() -> std::io::Result<Self> {
        let folder = TemporaryFolder::new("package")?;
        let path = folder.path().join(&*NAME);
        std::fs::create_dir(&path)?;
        for (name, text) in FILES {
            if let Some((part, _)) = name.rsplit_once('/') {
                std::fs::create_dir_all(path.join(part))?;
            }
            std::fs::write(path.join(name), renamed(text))?;
        }
        Ok(Self(folder))
    }

    /// Code that makes a kernel the guest of the host that listens at `socket`. It leaves no name behind in the kernel.
    pub(super) fn attach(&self, socket: &Path, token: &str, epoch: u32) -> String {
        let text = |path: &Path| path.display().to_string();
        // Text in JSON is a literal in Python too.
        let given = json!({ "name": *NAME, "folder": text(self.0.path()), "path": text(socket), "token": token, "epoch": epoch });
        format!("exec({}, {given})", json!(ATTACH))
    }
}

/// Code that lets a kernel call a function for the guest with this token.
pub(super) fn call(function: &str, token: &str) -> String {
    format!(
        "__import__(\"sys\").modules[\"{}.native.kernel_guest\"].{function}(\"{token}\")",
        *NAME
    )
}

/// The text of a package file with the package's name replaced.
fn renamed(text: &str) -> String {
    text.replace("from sandglass", &format!("from {}", *NAME))
        .replace("\"sandglass.", &format!("\"{}.", *NAME))
        .replace("\"sandglass\"", &format!("\"{}\"", *NAME))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nothing_in_it_imports_another_sandglass() {
        for (name, text) in FILES {
            for line in renamed(text).lines() {
                let imports = line.trim_start().starts_with("from ") || line.contains("import ");
                assert!(!imports || !line.contains(" sandglass"), "{name}: {line}");
                assert!(!line.contains("\"sandglass."), "{name}: {line}");
            }
        }
    }
}
