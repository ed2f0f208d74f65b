//! The commands `image build` and `venv build`.

use std::path::PathBuf;

use clap::{Args, Subcommand};

use sandglass_host::image::{self, BASE, Build, Packages};
use sandglass_host::runtime::Python;

/// `sandglass-host image …`
#[derive(Debug, Subcommand)]
pub enum ImageCommand {
    /// Builds the image from a base image, which is on this machine or in a registry.
    #[command(
        after_help = "Examples:\n  sandglass-host image build\n  sandglass-host image build --requirements requirements.txt --tag my-image"
    )]
    Build(ImageArgs),
    /// Builds a base image from Debian's packages, for machines that reach no registry of images.
    ///
    /// Needs mmdebstrap, and root.
    #[command(after_help = "Example:\n  sandglass-host image base --suite bookworm")]
    Base {
        /// The name of the base image.
        #[arg(long, default_value = BASE)]
        tag: String,
        /// The Debian release, such as bookworm.
        #[arg(long)]
        suite: Option<String>,
        /// The address of the Debian mirror.
        #[arg(long)]
        mirror: Option<String>,
    },
}

/// Options of `image build`.
#[derive(Debug, Args)]
pub struct ImageArgs {
    /// The image to start from; it needs Python 3.11 or newer.
    #[arg(long)]
    base: Option<String>,
    #[command(flatten)]
    packages: PackagesArgs,
    /// The name of the new image.
    #[arg(long)]
    tag: Option<String>,
}

/// The packages to install: the full list, unless an option says otherwise.
#[derive(Debug, Args)]
#[group(multiple = false)]
pub struct PackagesArgs {
    /// Install the short list only: numpy, pandas and a few others.
    #[arg(long)]
    slim: bool,
    /// Install the packages of this requirements file and their dependencies, from wheels only.
    #[arg(long, value_name = "FILE")]
    requirements: Option<PathBuf>,
}

/// `sandglass-host venv …`
#[derive(Debug, Subcommand)]
pub enum VenvCommand {
    /// Makes the environment, or updates it.
    #[command(
        after_help = "Examples:\n  sandglass-host venv build /opt/sandglass-venv\n  sandglass-host serve --python /opt/sandglass-venv/bin/python"
    )]
    Build {
        /// The folder of the environment. If the host runs as root, all users must be able to read it.
        folder: PathBuf,
        /// The packages to install.
        #[command(flatten)]
        packages: PackagesArgs,
        /// The Python that the environment is made with.
        #[arg(long)]
        python: Option<PathBuf>,
    },
}

impl PackagesArgs {
    fn read(self) -> Result<Packages, String> {
        match self.requirements {
            Some(file) => std::fs::read_to_string(&file)
                .map(Packages::Listed)
                .map_err(|error| format!("{} cannot be read: {error}", file.display())),
            None if self.slim => Ok(Packages::Slim),
            None => Ok(Packages::All),
        }
    }
}

/// Runs `image …`.
///
/// # Errors
/// Why there is no image.
pub async fn image(command: ImageCommand) -> Result<u8, String> {
    let name = match command {
        ImageCommand::Build(ImageArgs { base, packages, tag }) => {
            let packages = packages.read()?;
            let build = Build { base, packages, tag };
            image::build(&build, |line| println!("{line}")).await
        }
        ImageCommand::Base { tag, suite, mirror } => image::base(suite.as_deref(), mirror.as_deref(), &tag)
            .await
            .map(|()| tag),
    };
    println!("made {}", name.map_err(|error| error.to_string())?);
    Ok(0)
}

/// Runs `venv …`.
///
/// # Errors
/// Why there is no environment.
pub async fn venv(command: VenvCommand) -> Result<u8, String> {
    let VenvCommand::Build {
        folder,
        packages,
        python,
    } = command;
    let packages = packages.read()?;
    let python = Python::find(python.as_deref())
        .await
        .map_err(|error| error.to_string())?;
    let made = image::venv(&folder, &python.executable, &packages, |line| println!("{line}")).await;
    let program = made.map_err(|error| error.to_string())?;
    println!("made: sandglass-host serve --python {}", program.display());
    Ok(0)
}
