//! All files of a sandbox's working folder, for another sandbox.

use std::collections::HashSet;

use bytes::Bytes;
use sandglass_core::Error;
use sandglass_core::execution::LostVariable;

use super::Sandbox;

/// The file that makes an empty folder, and is removed at once.
const PLACEHOLDER: &str = ".sandglass-empty";

/// The files of a working folder.
#[derive(Debug, Clone, Default)]
pub struct Files {
    /// Paths, as the guest gave them, and contents. Only a guest's side may use them as paths.
    pub files: Vec<(String, Bytes)>,
    /// The empty folders.
    pub folders: Vec<String>,
    /// Files that cannot be read, with the reasons.
    pub lost: Vec<LostVariable>,
}

impl Sandbox {
    /// Reads the working folder: `most_files` files and folders at most, of `most_bytes` together. Links become files.
    ///
    /// # Errors
    /// [`Error::NotSerializable`] when there is more, and as all calls.
    pub async fn read_files(&self, most_files: usize, most_bytes: u64) -> Result<Files, Error> {
        let entries = self.list_files("").await?;
        if entries.len() > most_files {
            let number = entries.len();
            return Err(Error::NotSerializable(format!(
                "its working folder has {number} files and folders, of which at most {most_files} go along"
            )));
        }
        let full: HashSet<&str> = entries
            .iter()
            .filter_map(|entry| entry.path.rsplit_once('/').map(|(folder, _)| folder))
            .collect();
        let too_large = || Error::NotSerializable(format!("its files take more than {most_bytes} bytes"));
        let (mut all, mut left) = (Files::default(), most_bytes);
        for entry in &entries {
            if entry.kind == "directory" {
                if !full.contains(entry.path.as_str()) {
                    all.folders.push(entry.path.clone());
                }
                continue;
            }
            let size = u64::try_from(entry.size).unwrap_or_default();
            if size > left {
                return Err(too_large());
            }
            #[expect(clippy::cast_precision_loss, reason = "far below 2^53")]
            if size as f64 > self.limits.max_value_bytes {
                let path = &entry.path;
                return Err(Error::NotSerializable(format!(
                    "its file {path} is larger than maxValueSize"
                )));
            }
            let body = match self.read_file(entry.path.clone()).await {
                Ok(body) => body,
                Err(Error::FileNotFound(_)) => continue,
                Err(Error::File(reason)) => {
                    let name = format!("file {}", entry.path);
                    all.lost.push(LostVariable { name, reason });
                    continue;
                }
                Err(error) => return Err(error),
            };
            left = left.checked_sub(body.len() as u64).ok_or_else(too_large)?;
            all.files.push((entry.path.clone(), body.into()));
        }
        Ok(all)
    }

    /// Writes files into the working folder.
    ///
    /// # Errors
    /// As all calls.
    pub async fn write_files(&self, files: &Files) -> Result<(), Error> {
        for (path, body) in &files.files {
            self.write_file(path.clone(), body.clone()).await?;
        }
        for folder in &files.folders {
            let placeholder = format!("{folder}/{PLACEHOLDER}");
            self.write_file(placeholder.clone(), Vec::new()).await?;
            self.remove_file(placeholder).await?;
        }
        Ok(())
    }
}
