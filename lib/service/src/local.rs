//! Users of the Unix socket: root, and members of the group that the socket was opened to.
//!
//! The kernel says which user connected. A member of the group may do what the holder of a token may
//! do; what is root's on the host itself stays root's.

use crate::{gate::Asker, gone::Connection, reply::Refusal, unreadable::UnixSocket};
use axum::{
    extract::{
        Request,
        connect_info::{ConnectInfo, Connected},
    },
    middleware::Next,
    response::{IntoResponse, Response},
    serve::IncomingStream,
};
use forkyard_types::ErrorKind;
use nix::unistd::{Uid, User, geteuid};
use tokio::task::spawn_blocking;

/// User at the other end of a connection, none if the kernel does not say, and that connection.
#[derive(Clone, Debug)]
pub struct Caller(Option<Uid>, Option<Connection>);

impl Connected<IncomingStream<'_, UnixSocket>> for Caller {
    fn connect_info(stream: IncomingStream<'_, UnixSocket>) -> Self {
        let stream = stream.io().get_ref();
        let about = stream.peer_cred().ok();
        let user = about.map(|about| Uid::from_raw(about.uid()));
        Self(user, Connection::of(stream))
    }
}

/// Says of each request which user asks, and on which connection.
pub async fn tell(
    ConnectInfo(Caller(user, connection)): ConnectInfo<Caller>,
    mut request: Request,
    next: Next,
) -> Response {
    let Some(user) = user else {
        let text = "the kernel does not say which user connected";
        return Refusal::new(ErrorKind::Forbidden, text).into_response();
    };
    let asker = match user.is_root() || user == geteuid() {
        true => Asker::Host,
        false => Asker::User(name_of(user).await),
    };
    request.extensions_mut().insert(asker);
    if let Some(connection) = connection {
        request.extensions_mut().insert(connection);
    }
    next.run(request).await
}

/// Name of a user. The host's directory of users may be another host.
async fn name_of(user: Uid) -> String {
    let found = spawn_blocking(move || User::from_uid(user)).await;
    match found {
        Ok(Ok(Some(found))) => found.name,
        Ok(Ok(None) | Err(_)) | Err(_) => format!("uid {user}"),
    }
}

/// Refuses a request for something that is root's on the host itself.
pub async fn for_root(request: Request, next: Next) -> Response {
    match request.extensions().get::<Asker>() {
        Some(Asker::Host) => next.run(request).await,
        Some(Asker::User(_) | Asker::Node(..) | Asker::Guest) | None => {
            roots_alone().into_response()
        }
    }
}

/// Refusal of what only root on the host may ask for.
pub fn roots_alone() -> Refusal {
    Refusal::new(
        ErrorKind::Forbidden,
        "only root on the host itself may give out tokens, invitations and quotas, take them back, or schedule processes of the host",
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use axum::{Router, body::Body, http::StatusCode, middleware::from_fn, routing::get};
    use tower::ServiceExt;

    async fn status(path: &str, caller: Option<Uid>) -> StatusCode {
        let own = Router::new()
            .route("/tokens", get(async || ()))
            .route_layer(from_fn(for_root));
        let router = Router::new()
            .route("/vms", get(async || ()))
            .merge(own)
            .layer(from_fn(tell));
        let request = Request::builder()
            .uri(path)
            .extension(ConnectInfo(Caller(caller, None)))
            .body(Body::empty());
        let answer = router.oneshot(request.expect("a request")).await;
        answer.expect("an answer").status()
    }

    #[tokio::test]
    async fn members_of_the_group_may_do_what_a_token_may_and_no_more() {
        let [root, nobody] = [0, 65534].map(|user| Some(Uid::from_raw(user)));
        for (path, caller, expected) in [
            ("/vms", root, StatusCode::OK),
            ("/tokens", root, StatusCode::OK),
            ("/vms", nobody, StatusCode::OK),
            ("/tokens", nobody, StatusCode::FORBIDDEN),
            ("/vms", None, StatusCode::FORBIDDEN),
        ] {
            assert_eq!(status(path, caller).await, expected, "{path} {caller:?}");
        }
    }

    #[tokio::test]
    async fn a_user_without_a_name_is_told_by_number() {
        assert_eq!(name_of(Uid::from_raw(0)).await, "root");
        assert_eq!(
            name_of(Uid::from_raw(4_294_967_000)).await,
            "uid 4294967000"
        );
    }
}
