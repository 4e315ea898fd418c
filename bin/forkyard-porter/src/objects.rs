//! Objects of one store: read within bounds, written as a whole.

use forkyard_objects::{
    Digest, LONGEST, Piece, Root, StoreAddress, layout,
    order::{Done, Failed, Order, Said},
    settings::{Secret, StoreSettings},
};
use futures::{StreamExt, TryStreamExt, stream};
use object_store::{
    BackoffConfig, Certificate, ClientOptions, Error, ObjectMeta, ObjectStore, ObjectStoreExt,
    PutMode, PutOptions, PutPayload, RetryConfig, aws::AmazonS3Builder, local::LocalFileSystem,
    path::Path,
};
use std::{error, fs, io::Read, sync::Arc, time::Duration};

/// Requests under way at once.
pub const AT_ONCE: usize = 6;
/// Time for which a request that fails is repeated.
const PATIENCE: Duration = Duration::from_secs(30);
const REPEATED: usize = 6;
/// Most bytes of a file of certificates.
const MOST_CERTIFICATES: u64 = 4 << 20;

/// The objects of a store.
#[derive(Clone, Debug)]
pub struct Objects {
    store: Arc<dyn ObjectStore>,
    address: StoreAddress,
    prefix: Path,
}

impl Objects {
    /// Opens the store of an order. Speaks to no server yet.
    pub fn open(order: &Order) -> Result<Self, Failed> {
        let address = order.store.clone();
        let fault = |error: Error| Failed::Store(format!("{}: {}", order.store, told(&error)));
        let store: Arc<dyn ObjectStore> = match address.root() {
            Root::Folder(path) => {
                let folder = LocalFileSystem::new_with_prefix(path);
                let folder = folder.map_err(|error| {
                    Failed::Store(format!(
                        "{} is no folder that can be used: {}",
                        path.display(),
                        told(&error)
                    ))
                })?;
                Arc::new(folder.with_fsync(true))
            }
            Root::Bucket(name) => {
                let settings = order
                    .settings
                    .as_deref()
                    .map(StoreSettings::read)
                    .transpose()?;
                let settings = settings.unwrap_or_default();
                let authorities = authorities(settings.authority_of(name))?;
                Arc::new(bucket(name, &settings, authorities).map_err(fault)?)
            }
        };
        let prefix = Path::parse(address.prefix()).map_err(|error| fault(error.into()))?;
        Ok(Self {
            store,
            address,
            prefix,
        })
    }

    fn path(&self, name: &str) -> Path {
        name.split('/')
            .fold(self.prefix.clone(), |path, part| path.join(part))
    }

    /// Name of an object in this store.
    fn name(&self, path: &Path) -> String {
        let parts = path.prefix_match(&self.prefix);
        let parts = parts.into_iter().flatten();
        let parts: Vec<_> = parts.map(|part| part.as_ref().to_owned()).collect();
        parts.join("/")
    }

    /// The error of a request, with the store that it went to.
    fn failed(&self, error: &Error) -> Failed {
        Failed::Store(format!("{}: {}", self.address, told(error)))
    }

    /// Size and time of an object, if it is there.
    pub async fn facts(&self, name: &str) -> Result<Option<ObjectMeta>, Failed> {
        match self.store.head(&self.path(name)).await {
            Ok(facts) => Ok(Some(facts)),
            Err(Error::NotFound { .. }) => Ok(None),
            Err(error) => Err(self.failed(&error)),
        }
    }

    /// Bytes of an object of at most so many, and when it was stored; none if it is not there.
    async fn read(&self, name: &str, most: u64) -> Result<Option<(Vec<u8>, u64)>, Failed> {
        let found = match self.store.get(&self.path(name)).await {
            Ok(found) => found,
            Err(Error::NotFound { .. }) => return Ok(None),
            Err(error) => return Err(self.failed(&error)),
        };
        let stored = seconds(&found.meta);
        let mut bytes = Vec::new();
        let mut parts = found.into_stream();
        while let Some(part) = parts.next().await {
            let part = part.map_err(|error| self.failed(&error))?;
            // A server may send more than it has said.
            if (bytes.len() + part.len()) as u64 > most {
                let why = format!("{}: {name} is longer than {most} bytes", self.address);
                return Err(Failed::Store(why));
            }
            bytes.extend_from_slice(&part);
        }
        Ok(Some((bytes, stored)))
    }

    /// A piece, if the store has it as its name says.
    pub async fn piece(&self, piece: Piece) -> Result<Vec<u8>, Failed> {
        let name = layout::piece(piece.digest);
        // One that was changed may have any size.
        match self.facts(&name).await? {
            None => return Err(Failed::Missing(piece.digest)),
            Some(facts) if facts.size != u64::from(piece.bytes) => {
                return Err(Failed::Damaged(piece.digest));
            }
            Some(_) => {}
        }
        let read = self.read(&name, piece.bytes.into()).await?;
        let (bytes, _) = read.ok_or(Failed::Missing(piece.digest))?;
        match Piece::of(&bytes) == Some(piece) {
            true => Ok(bytes),
            false => Err(Failed::Damaged(piece.digest)),
        }
    }

    /// Writes an object, whole or not at all.
    pub async fn write(&self, name: &str, bytes: Vec<u8>, mode: PutMode) -> Result<(), Failed> {
        let options = PutOptions {
            mode,
            ..PutOptions::default()
        };
        let payload = PutPayload::from(bytes);
        match self
            .store
            .put_opts(&self.path(name), payload, options)
            .await
        {
            Ok(_) => Ok(()),
            Err(Error::AlreadyExists { .. }) => {
                let name = name.rsplit('/').next().unwrap_or(name);
                Err(Failed::Taken(name.to_owned()))
            }
            Err(error) => Err(self.failed(&error)),
        }
    }

    /// Writes an object, and says when, by the store's clock.
    pub async fn write_and_see(&self, name: &str, bytes: Vec<u8>) -> Result<u64, Failed> {
        self.write(name, bytes, PutMode::Overwrite).await?;
        let seen = self.facts(name).await?;
        seen.map(|facts| seconds(&facts)).ok_or_else(|| {
            let why = format!("{}: what was written is not there", self.address);
            Failed::Store(why)
        })
    }

    /// Deletes an object. One that is gone is no error.
    pub async fn delete(&self, name: &str) -> Result<(), Failed> {
        match self.store.delete(&self.path(name)).await {
            Ok(()) | Err(Error::NotFound { .. }) => Ok(()),
            Err(error) => Err(self.failed(&error)),
        }
    }

    /// All objects under a name: their names, bytes and times.
    pub async fn under(&self, name: &str) -> Result<Vec<Listed>, Failed> {
        let listed = self.store.list(Some(&self.path(name)));
        let listed = listed.map_ok(|facts| Listed {
            name: self.name(&facts.location),
            bytes: facts.size,
            stored: seconds(&facts),
        });
        let listed: Result<Vec<_>, Error> = listed.try_collect().await;
        listed.map_err(|error| self.failed(&error))
    }

    /// Bytes of every object under a name that is still there when it is read.
    pub async fn read_under(
        &self,
        name: &str,
        mut each: impl FnMut(String, Vec<u8>, u64) -> Result<(), Failed>,
    ) -> Result<(), Failed> {
        let names = self.under(name).await?.into_iter().map(|it| it.name);
        let reads = names.map(|name| async move {
            let read = self.read(&name, LONGEST).await?;
            Ok::<_, Failed>(read.map(|(bytes, stored)| (name, bytes, stored)))
        });
        // Few at once: each may be long.
        let mut reads = stream::iter(reads).buffered(2);
        while let Some(read) = reads.next().await {
            if let Some((name, bytes, stored)) = read? {
                each(name, bytes, stored)?;
            }
        }
        Ok(())
    }

    /// Says every manifest.
    pub async fn list(&self, say: impl Fn(Said) -> Result<(), Failed>) -> Result<Done, Failed> {
        self.read_under(layout::SUBSTRATES, |name, bytes, stored| {
            let name = name.rsplit('/').next().unwrap_or_default();
            say(manifest(name, bytes, stored))
        })
        .await?;
        Ok(Done::default())
    }

    /// The manifest of a substrate.
    pub async fn manifest(&self, name: &str) -> Result<Said, Failed> {
        let read = self.read(&layout::manifest(name), LONGEST).await?;
        let (bytes, stored) = read.ok_or_else(|| Failed::Absent(name.to_owned()))?;
        Ok(manifest(name, bytes, stored))
    }

    /// Removes the manifest of a substrate.
    pub async fn remove(&self, name: &str) -> Result<(), Failed> {
        let manifest = layout::manifest(name);
        match self.facts(&manifest).await? {
            None => Err(Failed::Absent(name.to_owned())),
            Some(_) => self.delete(&manifest).await,
        }
    }
}

/// Name, bytes and time of an object.
#[derive(Clone, Debug)]
pub struct Listed {
    /// Name in the store.
    pub name: String,
    /// Number of bytes.
    pub bytes: u64,
    /// Seconds since 1970 at which it was stored.
    pub stored: u64,
}

impl Listed {
    /// The piece that it is, if it is one.
    pub fn piece(&self) -> Option<Digest> {
        layout::piece_of(&self.name)
    }
}

fn manifest(name: &str, bytes: Vec<u8>, stored: u64) -> Said {
    Said::Manifest {
        name: name.to_owned(),
        // What is no text is no manifest, whatever it is made of here.
        object: String::from_utf8_lossy(&bytes).into_owned(),
        stored,
    }
}

fn seconds(facts: &ObjectMeta) -> u64 {
    u64::try_from(facts.last_modified.timestamp()).unwrap_or_default()
}

/// Reads certificates that a server is trusted by.
fn authorities(path: Option<&std::path::Path>) -> Result<Vec<Certificate>, Failed> {
    let Some(path) = path else {
        return Ok(Vec::new());
    };
    let refuse = |why: String| Failed::Settings(format!("ca_file {}: {why}", path.display()));
    let file = fs::File::open(path).map_err(|error| refuse(error.to_string()))?;
    let mut text = Vec::new();
    let read = file.take(MOST_CERTIFICATES).read_to_end(&mut text);
    read.map_err(|error| refuse(error.to_string()))?;
    let found = Certificate::from_pem_bundle(&text).map_err(|error| refuse(told(&error)))?;
    match found.is_empty() {
        true => Err(refuse("there is no certificate in it (PEM)".into())),
        false => Ok(found),
    }
}

fn bucket(
    name: &str,
    settings: &StoreSettings,
    authorities: Vec<Certificate>,
) -> Result<impl ObjectStore, Error> {
    let builder = match settings.bucket.get(name) {
        None => AmazonS3Builder::from_env(),
        Some(own) => {
            let Secret(id) = &own.access_key_id;
            let Secret(key) = &own.secret_access_key;
            let mut builder = AmazonS3Builder::new()
                .with_access_key_id(id)
                .with_secret_access_key(key)
                .with_virtual_hosted_style_request(own.virtual_hosted);
            if let Some(Secret(token)) = &own.session_token {
                builder = builder.with_token(token);
            }
            if let Some(region) = &own.region {
                builder = builder.with_region(region);
            }
            if let Some(endpoint) = &own.endpoint {
                // In the clear where the operator has written that.
                builder = builder
                    .with_endpoint(endpoint)
                    .with_allow_http(endpoint.starts_with("http://"));
            }
            builder
        }
    };
    // Those of the system are believed of a server that has none of its own.
    let client = match authorities.is_empty() {
        true => ClientOptions::new(),
        false => ClientOptions::new().with_no_system_certificates(true),
    };
    let client = authorities
        .into_iter()
        .fold(client, ClientOptions::with_root_certificate);
    let client = client
        .with_connect_timeout(Duration::from_secs(10))
        .with_timeout(Duration::from_secs(120));
    let client = match settings
        .bucket
        .get(name)
        .and_then(|it| it.endpoint.as_deref())
    {
        Some(endpoint) => client.with_allow_http(endpoint.starts_with("http://")),
        None => client,
    };
    builder
        .with_bucket_name(name)
        .with_client_options(client)
        .with_retry(RetryConfig {
            backoff: BackoffConfig::default(),
            max_retries: REPEATED,
            retry_timeout: PATIENCE,
        })
        .build()
}

/// An error and all that led to it, in one line.
fn told(error: &Error) -> String {
    let mut said = error.to_string();
    let mut next = error::Error::source(error);
    while let Some(source) = next {
        let more = source.to_string();
        if !said.contains(&more) {
            said = format!("{said}: {more}");
        }
        next = source.source();
    }
    said.split_whitespace().collect::<Vec<_>>().join(" ")
}
