//! The image of Docker guests, built by the program as a user builds it.

use std::path::{Path, PathBuf};

use axum::Router;
use axum::extract::Path as Name;
use axum::http::StatusCode;
use axum::response::Html;
use axum::routing::get;
use bollard::query_parameters::RemoveImageOptionsBuilder;
use sandglass_host::{BackendKind, image};
use tokio::process::Command;

use crate::support::{builder, docker_engine, ran, with_context};

const TAG: &str = "sandglass-test:image-build";

/// The wheels that scripts/setup has downloaded.
fn wheels() -> PathBuf {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../.setup/wheels");
    assert!(folder.is_dir(), "there are no wheels: scripts/setup downloads them");
    folder
}

/// Their names, versions and files.
fn listed() -> Vec<(String, String, String)> {
    let files = std::fs::read_dir(wheels()).unwrap().flatten();
    let files = files.filter_map(|entry| entry.file_name().into_string().ok());
    let files = files.filter(|file| file.ends_with("-py3-none-any.whl"));
    files
        .filter_map(|file| {
            let mut parts = file.split('-');
            let (name, version) = (parts.next()?.replace('_', "-"), parts.next()?.to_owned());
            Some((name, version, file))
        })
        .collect()
}

/// Serves an index of packages as pip asks for it. Returns its address.
async fn index() -> String {
    let page = async |Name(name): Name<String>| {
        let links = listed().into_iter().filter(|(known, ..)| *known == name);
        let links: String = links
            .map(|(_, _, file)| format!("<a href=\"/files/{file}\">{file}</a>"))
            .collect();
        if links.is_empty() {
            Err(StatusCode::NOT_FOUND)
        } else {
            Ok(Html(links))
        }
    };
    let file = async |Name(file): Name<String>| std::fs::read(wheels().join(file)).map_err(|_| StatusCode::NOT_FOUND);
    let router = Router::new()
        .route("/simple/{name}/", get(page))
        .route("/files/{file}", get(file));
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    tokio::spawn(async move { axum::serve(listener, router).await });
    format!("http://{address}/simple/")
}

/// The exit status of `image build`, and its output.
async fn built(index: &str, requirements: &str) -> (Option<i32>, String) {
    let folder = tempfile::tempdir().unwrap();
    let list = folder.path().join("requirements.txt");
    std::fs::write(&list, requirements).unwrap();
    let output = Command::new(env!("CARGO_BIN_EXE_sandglass-host"))
        .args(["image", "build", "--base", image::BASE, "--tag", TAG, "--requirements"])
        .arg(&list)
        .env("PIP_INDEX_URL", index)
        .env_remove("PIP_EXTRA_INDEX_URL")
        .env("NO_PROXY", "127.0.0.1")
        .env("no_proxy", "127.0.0.1")
        .output()
        .await
        .unwrap();
    let said = [output.stdout, output.stderr].concat();
    (output.status.code(), String::from_utf8_lossy(&said).into_owned())
}

#[tokio::test(flavor = "multi_thread")]
async fn an_image_has_the_packages_that_were_listed() {
    let docker = docker_engine().await;
    let index = index().await;
    let all = listed();
    let (_, version, _) = all.iter().find(|(name, ..)| name == "email-validator").unwrap();
    // The package needs two others, which the list does not name.
    let (status, said) = built(&index, &format!("# a list\nemail_validator=={version}\n")).await;
    assert_eq!(status, Some(0), "{said}");
    assert!(said.contains("1 packages, 1 modules imported"), "{said}");

    let sandbox = with_context(builder(BackendKind::Docker).image(TAG)).await;
    let code = "import dns, email_validator\nemail_validator.__version__, email_validator.validate_email('a@example.org', check_deliverability=False).domain";
    let run = ran(&sandbox, code).await;
    assert_eq!(run.result.as_deref(), Some(&*format!("('{version}', 'example.org')")));
    sandbox.destroy().await;

    let (status, said) = built(&index, "unheard-of==1.0\n").await;
    assert_eq!(status, Some(1), "{said}");
    assert!(
        said.contains("the image was not built") && said.contains("No matching distribution found for unheard-of"),
        "{said}"
    );
    let force = RemoveImageOptionsBuilder::default().force(true).build();
    docker.remove_image(TAG, Some(force), None).await.unwrap();
}
