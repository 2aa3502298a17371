//! Reservations, and the extension of what is booked.

use super::error::{Answer, act_begins};
use super::extract::{Body, Named, NoParams, Params};
use crate::app::{App, Caller};
use crate::store::{extend, reservations};
use axum::Json;
use axum::extract::State;
use axum::http::StatusCode;
use proto::api::{ExtendRequest, Extended, ReservationList, ReserveRequest};
use proto::error::ErrorBody;
use serde::Deserialize;

/// The query of the list.
#[derive(Debug, Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub(super) struct ListParams {
    ended: bool,
}

/// List reservations
///
/// Those that have not ended, or with `ended=true` all, by beginning.
#[utoipa::path(get, path = "/v1/reservations", tag = "reservations",
    params(("ended" = Option<bool>, Query, description = "those that have ended too")), responses(
    (status = 200, description = "reservations", body = ReservationList),
    (status = "default", description = "refused", body = ErrorBody)))]
pub(super) async fn list(
    State(app): State<App>,
    _: Caller,
    Params(params): Params<ListParams>,
) -> Answer<ReservationList> {
    Ok(Json(reservations::list(&app.db, params.ended).await?))
}

/// The reservations of a name
#[utoipa::path(get, path = "/v1/reservations/{name}", tag = "reservations",
    params(("name", description = "its name")), responses(
    (status = 200, description = "each that has not ended, or the last that did", body = ReservationList),
    (status = "default", description = "refused", body = ErrorBody)))]
pub(super) async fn show(
    State(app): State<App>,
    _: Caller,
    _: Params<NoParams>,
    Named(name): Named,
) -> Answer<ReservationList> {
    Ok(Json(reservations::named(&app.db, &name).await?))
}

/// Reserve
///
/// Books all that is asked for, for every occurrence, or refuses with both numbers and the earliest time at which it would fit.
#[utoipa::path(post, path = "/v1/reservations", tag = "reservations", request_body = ReserveRequest, responses(
    (status = 201, description = "booked", body = ReservationList),
    (status = "default", description = "refused; nothing was booked", body = ErrorBody)))]
pub(super) async fn reserve(
    State(app): State<App>,
    caller: Caller,
    _: Params<NoParams>,
    Body(request): Body<ReserveRequest>,
) -> Result<(StatusCode, Json<ReservationList>), super::error::Failure> {
    let list = reservations::reserve(&app.db, &caller, &request).await?;
    tracing::info!(reservation.name = request.name, user.name = caller.user, "reserved");
    app.wakes.reservations();
    app.wakes.planner();
    Ok((StatusCode::CREATED, Json(list)))
}

/// Cancel reservations
///
/// All of the name that have not ended. What runs in them goes on; what they had booked is free.
#[utoipa::path(post, path = "/v1/reservations/{name}/cancel", tag = "reservations",
    params(("name", description = "its name")), responses(
    (status = 200, description = "cancelled", body = ReservationList),
    (status = "default", description = "refused", body = ErrorBody)))]
pub(super) async fn cancel(
    State(app): State<App>,
    caller: Caller,
    _: Params<NoParams>,
    Named(name): Named,
) -> Answer<ReservationList> {
    act_begins();
    let ids = reservations::cancel(&app.db, &caller, &name).await?;
    tracing::info!(
        reservation.name = name,
        user.name = caller.user,
        occurrences = ids.len(),
        "reservation cancelled"
    );
    app.wakes.planner();
    Ok(Json(reservations::named(&app.db, &name).await?))
}

/// Extend a job or a reservation
///
/// Granted exactly if the book is free for the new time; a refusal names what is in the way.
#[utoipa::path(post, path = "/v1/extend", tag = "reservations", request_body = ExtendRequest, responses(
    (status = 200, description = "extended", body = Extended),
    (status = "default", description = "refused; nothing changed", body = ErrorBody)))]
pub(super) async fn extend(
    State(app): State<App>,
    caller: Caller,
    _: Params<NoParams>,
    Body(request): Body<ExtendRequest>,
) -> Answer<Extended> {
    let done = extend::extend(&app.db, &caller, &request, app.config.grace_s()).await?;
    app.wakes.nodes(done.nodes);
    app.wakes.reservations();
    Ok(Json(done.extended))
}
