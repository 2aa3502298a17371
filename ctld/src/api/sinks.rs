//! Sinks: webhooks that events are sent to. For operators.

use super::caller::Operator;
use super::error::{Answer, Failure, invalid};
use super::extract::{Body, Named, NoParams, Params};
use crate::app::App;
use crate::store::sinks;
use crate::webhook::{sign, target};
use axum::Json;
use axum::extract::State;
use axum::http::StatusCode;
use proto::api::{DeadLetterList, ReplayAnswer, ReplayRequest, SinkAdded, SinkList, SinkRequest};
use proto::error::ErrorBody;
use proto::{ApiError, Cursor, ErrorCode};

/// List sinks
#[utoipa::path(get, path = "/v1/sinks", tag = "events", responses(
    (status = 200, description = "sinks, by number", body = SinkList),
    (status = "default", description = "refused", body = ErrorBody)))]
pub(super) async fn list(State(app): State<App>, _: Operator, _: Params<NoParams>) -> Answer<SinkList> {
    Ok(Json(sinks::list(&app.db, None).await?))
}

/// Make a sink
///
/// Events from now on are sent there, each in a POST signed as Standard Webhooks has it. The secret is shown in this answer only.
#[utoipa::path(post, path = "/v1/sinks", tag = "events", request_body = SinkRequest, responses(
    (status = 201, description = "the sink and its secret", body = SinkAdded),
    (status = "default", description = "refused; nothing changed", body = ErrorBody)))]
pub(super) async fn add(
    State(app): State<App>,
    Operator(caller): Operator,
    _: Params<NoParams>,
    Body(request): Body<SinkRequest>,
) -> Result<(StatusCode, Json<SinkAdded>), Failure> {
    for kind in &request.types {
        proto::event::check_filter(kind).map_err(|error| invalid(error.to_string()))?;
    }
    let secret = request.secret.clone().unwrap_or_else(sign::new_secret);
    if sign::key(&secret).is_none() {
        // Not repeated: it may be somebody's.
        return Err(invalid("the secret is none: expected whsec_ and 24 to 64 bytes in base64").into());
    }
    let target = target::parse(&request.url).map_err(|error| invalid(error.to_string()))?;
    target::resolve(&target, &app.config.webhooks_allow).await.map_err(|error| match error {
        target::TargetError::Unresolved(..) => {
            ApiError::new(ErrorCode::InvalidArgument, error.to_string()).hint("is the name right?")
        }
        error => ApiError::new(ErrorCode::PermissionDenied, error.to_string()),
    })?;
    let id = sinks::add(&app.db, &caller, &request, &secret).await?;
    tracing::info!(sink.id = id, url.host = target.host, user.name = caller.user, "sink made");
    let mut list = sinks::list(&app.db, Some(id)).await?;
    let sink =
        list.sinks.pop().ok_or_else(|| ApiError::new(ErrorCode::Conflict, "it was deleted at once"))?;
    Ok((StatusCode::CREATED, Json(SinkAdded { sink, secret })))
}

/// Show a sink
#[utoipa::path(get, path = "/v1/sinks/{id}", tag = "events", params(("id", description = "its number")), responses(
    (status = 200, description = "the sink", body = SinkList),
    (status = "default", description = "refused", body = ErrorBody)))]
pub(super) async fn show(
    State(app): State<App>,
    _: Operator,
    _: Params<NoParams>,
    Named(id): Named,
) -> Answer<SinkList> {
    Ok(Json(sinks::list(&app.db, Some(number(&id)?)).await?))
}

/// Pause a sink
///
/// Nothing is sent until it is resumed, from where it was as far as events are kept.
#[utoipa::path(post, path = "/v1/sinks/{id}/pause", tag = "events", params(("id", description = "its number")), responses(
    (status = 200, description = "the sink", body = SinkList),
    (status = "default", description = "refused", body = ErrorBody)))]
pub(super) async fn pause(
    State(app): State<App>,
    Operator(caller): Operator,
    _: Params<NoParams>,
    Named(id): Named,
) -> Answer<SinkList> {
    let id = number(&id)?;
    sinks::set_state(&app.db, id, "paused", Some(&format!("paused by {}", caller.user))).await?;
    Ok(Json(sinks::list(&app.db, Some(id)).await?))
}

/// Resume a sink
#[utoipa::path(post, path = "/v1/sinks/{id}/resume", tag = "events", params(("id", description = "its number")), responses(
    (status = 200, description = "the sink", body = SinkList),
    (status = "default", description = "refused", body = ErrorBody)))]
pub(super) async fn resume(
    State(app): State<App>,
    _: Operator,
    _: Params<NoParams>,
    Named(id): Named,
) -> Answer<SinkList> {
    let id = number(&id)?;
    sinks::set_state(&app.db, id, "active", None).await?;
    Ok(Json(sinks::list(&app.db, Some(id)).await?))
}

/// Delete a sink
///
/// With what waits for it and its dead letters.
#[utoipa::path(post, path = "/v1/sinks/{id}/delete", tag = "events", params(("id", description = "its number")), responses(
    (status = 200, description = "the sink as it was", body = SinkList),
    (status = "default", description = "refused", body = ErrorBody)))]
pub(super) async fn delete(
    State(app): State<App>,
    Operator(caller): Operator,
    _: Params<NoParams>,
    Named(id): Named,
) -> Answer<SinkList> {
    let id = number(&id)?;
    let list = sinks::list(&app.db, Some(id)).await?;
    sinks::delete(&app.db, id).await?;
    tracing::info!(sink.id = id, user.name = caller.user, "sink deleted");
    Ok(Json(list))
}

/// List what a sink did not take
#[utoipa::path(get, path = "/v1/sinks/{id}/dead-letters", tag = "events", params(("id", description = "its number")), responses(
    (status = 200, description = "dead letters, the oldest first", body = DeadLetterList),
    (status = "default", description = "refused", body = ErrorBody)))]
pub(super) async fn dead_letters(
    State(app): State<App>,
    _: Operator,
    _: Params<NoParams>,
    Named(id): Named,
) -> Answer<DeadLetterList> {
    Ok(Json(sinks::dead_letters(&app.db, number(&id)?).await?))
}

/// Send dead letters again
#[utoipa::path(post, path = "/v1/sinks/{id}/replay", tag = "events", params(("id", description = "its number")),
    request_body = ReplayRequest, responses(
    (status = 200, description = "how many are sent again", body = ReplayAnswer),
    (status = "default", description = "refused", body = ErrorBody)))]
pub(super) async fn replay(
    State(app): State<App>,
    _: Operator,
    _: Params<NoParams>,
    Named(id): Named,
    Body(request): Body<ReplayRequest>,
) -> Answer<ReplayAnswer> {
    let cursors = request.cursors.iter().map(|text| text.parse::<Cursor>());
    let cursors: Vec<Cursor> =
        cursors.collect::<Result<_, _>>().map_err(|error| invalid(error.to_string()))?;
    let replayed = sinks::replay(&app.db, number(&id)?, &cursors).await?;
    Ok(Json(ReplayAnswer { replayed }))
}

fn number(text: &str) -> Result<i64, ApiError> {
    text.parse().map_err(|_| invalid(format!("{text:?} is no sink's number")))
}
