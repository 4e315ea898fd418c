//! Parameters of queries: a request with one that its route's description does not have, or that is
//! no text, is refused. A misspelt `force` or a filter that is none would otherwise be passed over, and the
//! request carried out without it.

use crate::reply::Refusal;
use axum::{
    extract::{MatchedPath, Request, State},
    http::{Method, StatusCode},
    middleware::Next,
    response::{IntoResponse, Response},
};
use forkyard_types::ErrorKind;
use percent_encoding::percent_decode_str;
use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};
use utoipa::openapi::{
    OpenApi, RefOr,
    path::{Operation, ParameterIn},
};

/// Names of the parameters that each route of an API knows, by path and method.
#[derive(Clone, Debug, Default)]
pub struct Parameters(Arc<BTreeMap<(String, Method), BTreeSet<String>>>);

impl Parameters {
    /// Takes them from the API's description.
    pub fn of(api: &OpenApi) -> Self {
        let mut known = BTreeMap::new();
        for (path, item) in &api.paths.paths {
            for (method, operation) in [
                (Method::GET, &item.get),
                (Method::HEAD, &item.get),
                (Method::PUT, &item.put),
                (Method::POST, &item.post),
                (Method::DELETE, &item.delete),
                (Method::PATCH, &item.patch),
            ] {
                if let Some(operation) = operation {
                    known.insert((path.clone(), method), in_query(operation));
                }
            }
        }
        Self(Arc::new(known))
    }

    /// Returns why a query is refused, if it is.
    fn wrong(&self, path: &str, method: &Method, query: &str) -> Option<String> {
        let known = self.0.get(&(path.to_owned(), method.clone()))?;
        let parts = query.split('&').filter(|part| !part.is_empty());
        let mut names = Vec::new();
        for part in parts {
            let (name, value) = part.split_once('=').unwrap_or((part, ""));
            // Read with something in place of what is none, a path would be another file's.
            let (Some(name), Some(_)) = (decoded(name), decoded(value)) else {
                let shown: String = part.chars().take(SHOWN).collect();
                return Some(format!(
                    "the query is wrong: `{shown}` is not UTF-8 once its %-escapes are read"
                ));
            };
            names.push(name);
        }
        let name = names.into_iter().find(|name| !known.contains(name))?;
        let shown: String = name.chars().take(SHOWN).collect();
        Some(match known.len() {
            0 => format!("this request takes no parameters, and the query has `{shown}`"),
            _ => {
                let known: Vec<_> = known.iter().map(|name| format!("`{name}`")).collect();
                format!(
                    "the query has an unknown parameter `{shown}`: this request knows {}",
                    known.join(", ")
                )
            }
        })
    }
}

/// Characters of a name that are shown.
const SHOWN: usize = 64;

/// A part of a query without its escapes; none if it is no text.
fn decoded(part: &str) -> Option<String> {
    let plain = part.replace('+', " ");
    let text = percent_decode_str(&plain).decode_utf8().ok()?;
    Some(text.into_owned())
}

fn in_query(operation: &Operation) -> BTreeSet<String> {
    let parameters = operation.parameters.iter().flatten();
    parameters
        .filter_map(|parameter| match parameter {
            RefOr::T(parameter) => Some(parameter),
            RefOr::Ref(_) => None,
        })
        .filter(|parameter| parameter.parameter_in == ParameterIn::Query)
        .map(|parameter| parameter.name.clone())
        .collect()
}

/// Refuses queries with parameters that their route does not know.
pub async fn check(
    State(parameters): State<Parameters>,
    path: Option<MatchedPath>,
    request: Request,
    next: Next,
) -> Response {
    if let (Some(path), Some(query)) = (path, request.uri().query())
        && let Some(text) = parameters.wrong(path.as_str(), request.method(), query)
    {
        return Refusal::new(ErrorKind::Invalid, &text)
            .answered(StatusCode::BAD_REQUEST)
            .into_response();
    }
    next.run(request).await
}

#[cfg(test)]
mod tests {
    use super::*;
    use axum::{Router, body::Body, middleware::from_fn_with_state, routing::get};
    use tower::ServiceExt;
    use utoipa::openapi::{
        HttpMethod, PathItem, PathsBuilder,
        path::{OperationBuilder, ParameterBuilder},
    };

    fn parameters() -> Parameters {
        let named = |name, place| {
            let parameter = ParameterBuilder::new().name(name).parameter_in(place);
            OperationBuilder::new().parameter(parameter.build())
        };
        let of = |method, operation: OperationBuilder| PathItem::new(method, operation.build());
        let paths = PathsBuilder::new()
            .path(
                "/vms",
                of(HttpMethod::Get, named("labels", ParameterIn::Query)),
            )
            .path(
                "/vms/{vm}",
                of(HttpMethod::Delete, named("vm", ParameterIn::Path)),
            );
        Parameters::of(&OpenApi::builder().paths(paths).build())
    }

    #[tokio::test]
    async fn parameters_that_a_route_does_not_know_are_refused() {
        let router = Router::new()
            .route("/vms", get(async || ()).post(async || ()))
            .route("/vms/{vm}", axum::routing::delete(async || ()))
            .fallback(async || StatusCode::NOT_FOUND)
            .layer(from_fn_with_state(parameters(), check));
        for (method, path, status) in [
            (Method::GET, "/vms", 200),
            (Method::GET, "/vms?", 200),
            (Method::GET, "/vms?labels=a=b&", 200),
            (Method::HEAD, "/vms?labels", 200),
            (Method::GET, "/vms?label=a", 400),
            (Method::GET, "/vms?labels=a&x", 400),
            (Method::GET, "/vms?%6cabels=%C3%BC+b", 200),
            (Method::GET, "/vms?labels=%ff", 400),
            (Method::GET, "/vms?%fflabels=a", 400),
            (Method::DELETE, "/vms/p?force=true", 400),
            (Method::DELETE, "/vms/p?vm=q", 400),
            // Not in the description, and so its route's own matter.
            (Method::POST, "/vms?any=1", 200),
            (Method::GET, "/none?any=1", 404),
        ] {
            let request = Request::builder().method(method.clone()).uri(path);
            let request = request.body(Body::empty()).expect("a request");
            let answer = router.clone().oneshot(request).await.expect("an answer");
            assert_eq!(answer.status().as_u16(), status, "{method} {path}");
        }
    }

    #[test]
    fn the_known_ones_are_named() {
        let told = parameters().wrong("/vms", &Method::GET, "label=a");
        let told = told.expect("refused");
        assert!(
            told.contains("`label`") && told.contains("`labels`"),
            "{told}"
        );
    }
}
