package listwatch

import (
	"errors"
	"io"
	"net"
	"net/http"
	"net/url"
	"strings"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	utilnet "k8s.io/apimachinery/pkg/util/net"
)

// causeWatchDecoding is the cause of the Status with which a watch of client-go ends when it cannot read an event.
const causeWatchDecoding metav1.CauseType = "ClientWatchDecoding"

// ErrMalformed is wrapped by errors from responses that cannot be parsed.
var ErrMalformed = errors.New("malformed response")

// rejection is an error of the store.
type rejection struct{ error }

func (e rejection) Unwrap() error { return e.error }

// outcomeOf returns the outcome of a request that failed with err, which is an answer from the server, an error event,
// an error of the transport or a rejection.
func outcomeOf(sent request, err error) outcome {
	o := outcome{kind: kindOf(sent, err), err: err}
	if seconds, suggested := apierrors.SuggestsClientDelay(err); suggested {
		o.retryAfter = time.Duration(seconds) * time.Second
	}
	return o
}

func kindOf(sent request, err error) kind {
	var status apierrors.APIStatus
	_, isRejection := errors.AsType[rejection](err)
	switch {
	case isRejection:
		return rejected
	case errors.Is(err, ErrMalformed):
		return malformed
	case errors.Is(err, errOutdated):
		return outdated
	case errors.As(err, &status):
		return kindOfStatus(sent, err, int(status.Status().Code))
	case isUnreachable(err):
		return unreachable
	default:
		return failed
	}
}

func kindOfStatus(sent request, err error, code int) kind {
	isForbidden := apierrors.IsForbidden(err) || apierrors.IsUnauthorized(err)
	switch {
	case isTooLarge(err):
		return tooLarge
	case apierrors.IsResourceExpired(err), apierrors.IsGone(err), code == http.StatusGone:
		return expired
	case apierrors.IsTooManyRequests(err):
		return busy
	case sent == streamRequest && isForbidden:
		return streamForbidden
	case isForbidden:
		return forbidden
	case apierrors.IsNotFound(err):
		return notFound
	case code == http.StatusBadGateway, code == http.StatusServiceUnavailable, code == http.StatusGatewayTimeout:
		return unavailable
	case apierrors.IsNotAcceptable(err), code == http.StatusNotAcceptable:
		return notAcceptable
	case sent != listRequest && (code == http.StatusMethodNotAllowed || code == http.StatusNotImplemented):
		return noWatch
	case sent == streamRequest && (code == http.StatusBadRequest || code == http.StatusUnprocessableEntity):
		return streamInvalid
	default:
		return failed
	}
}

// isTooLarge reports whether the server does not have the requested resourceVersion yet, or has lost it.
func isTooLarge(err error) bool {
	return apierrors.HasStatusCause(err, metav1.CauseTypeResourceVersionTooLarge) ||
		apierrors.IsTimeout(err) && strings.Contains(err.Error(), "Too large resource version")
}

func isUnreachable(err error) bool {
	_, isURL := errors.AsType[*url.Error](err)
	_, isNet := errors.AsType[net.Error](err)
	return isURL || isNet || utilnet.IsConnectionRefused(err) || isLost(err)
}

// isLost reports whether the connection was lost. A watch of client-go reports this with a Status of its own. The text
// of the server's Status does not count.
func isLost(err error) bool {
	var status apierrors.APIStatus
	if errors.As(err, &status) && !apierrors.HasStatusCause(err, causeWatchDecoding) {
		return false
	}
	return errors.Is(err, io.ErrUnexpectedEOF) || utilnet.IsProbableEOF(err) ||
		utilnet.IsConnectionReset(err) || utilnet.IsHTTP2ConnectionLost(err)
}
