package webhook

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"mime"
	"net/http"
	"time"

	"github.com/go-logr/logr"
	admissionv1 "k8s.io/api/admission/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"

	"github.com/dynamic-controller/engine/cmd/dynamic-controller/internal/acceptance"
	"github.com/dynamic-controller/engine/cmd/dynamic-controller/internal/blueprint"
)

const (
	// Path is the path at which Blueprints are reviewed.
	Path = "/validate-blueprints"
	// Name is the name of the webhook in a ValidatingWebhookConfiguration.
	Name = "blueprints.platform.example.com"

	// maxBodyBytes is the maximum size of a request body. The body contains the new and the old object. Each object can
	// have up to 3 MiB, which is the API server's limit for a request.
	maxBodyBytes = 7 << 20
	// maxObjectBytes is the maximum size of a Blueprint to review. By default, etcd accepts up to 1.5 MiB. A decoded
	// object can take up ten times as much memory as its JSON.
	maxObjectBytes = 2 << 20
	// maxUIDBytes is the maximum size of the UID of a request, which the response repeats.
	maxUIDBytes = 256
	// maxRequests is the maximum number of concurrent requests.
	maxRequests = 4
	// maxTimeout is the default and the maximum timeout of a request. It equals the timeout in the manifests.
	maxTimeout = 5 * time.Second
)

// Keys of log values.
const (
	keyProblem = "problem"
	keyStack   = "stack"
)

// ReviewFunc reviews a Blueprint. See [acceptance.Controller.Review].
type ReviewFunc func(context.Context, *blueprint.Blueprint) (acceptance.Verdict, error)

// Handler responds to admission requests for Blueprints.
type Handler struct {
	log    logr.Logger
	review ReviewFunc
	// requests and reviewing are semaphores. reviewing admits one Blueprint at a time.
	requests, reviewing chan struct{}
}

// NewHandler returns a Handler.
func NewHandler(log logr.Logger, review ReviewFunc) *Handler {
	return &Handler{
		log: log, review: review, requests: make(chan struct{}, maxRequests), reviewing: make(chan struct{}, 1),
	}
}

// Stop waits for the current review, if any, and prevents further ones. Later requests are allowed without a review.
func (h *Handler) Stop() { h.reviewing <- struct{}{} }

// ServeHTTP responds to an AdmissionReview.
func (h *Handler) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	ctx, cancel := context.WithTimeout(r.Context(), timeoutOf(r))
	defer cancel()
	select {
	case h.requests <- struct{}{}:
		defer func() { <-h.requests }()
	case <-ctx.Done():
		http.Error(w, "too many requests are being handled; try again", http.StatusServiceUnavailable)
		return
	}
	req, err := read(w, r)
	if err != nil {
		var problem *httpError
		if !errors.As(err, &problem) {
			problem = &httpError{http.StatusBadRequest, err.Error()}
		}
		http.Error(w, blueprint.Cut(problem.text, maxMessageBytes), problem.code) // it can quote the request
		return
	}
	response := h.respond(ctx, req)
	response.UID = req.UID
	w.Header().Set("Content-Type", "application/json")
	_ = json.NewEncoder(w).Encode(admissionv1.AdmissionReview{TypeMeta: reviewType, Response: response})
}

// review contains the fields of an AdmissionReview that the webhook uses. Decoding only these fields saves memory.
type review struct {
	metav1.TypeMeta
	Request *request
}

// request contains the fields of an AdmissionRequest that the webhook uses.
type request struct {
	UID               types.UID
	Kind              metav1.GroupVersionKind
	SubResource       string
	Operation         admissionv1.Operation
	Object, OldObject runtime.RawExtension
}

// reviewType is the only supported type of review.
var reviewType = metav1.TypeMeta{APIVersion: admissionv1.SchemeGroupVersion.String(), Kind: "AdmissionReview"}

// httpError is the response to a request that is not a review of a Blueprint.
type httpError struct {
	code int
	text string
}

func (e *httpError) Error() string { return e.text }

// read returns the request in an AdmissionReview.
func read(w http.ResponseWriter, r *http.Request) (*request, error) {
	if r.Method != http.MethodPost {
		w.Header().Set("Allow", http.MethodPost)
		return nil, &httpError{http.StatusMethodNotAllowed, "the method must be POST"}
	}
	if media, _, err := mime.ParseMediaType(r.Header.Get("Content-Type")); err != nil || media != "application/json" {
		return nil, &httpError{http.StatusUnsupportedMediaType, "the content type must be application/json"}
	}
	body, err := io.ReadAll(http.MaxBytesReader(w, r.Body, maxBodyBytes))
	var tooLarge *http.MaxBytesError
	switch {
	case errors.As(err, &tooLarge):
		return nil, &httpError{http.StatusRequestEntityTooLarge,
			fmt.Sprintf("the body is larger than %d bytes", maxBodyBytes)}
	case err != nil:
		return nil, fmt.Errorf("read the body: %w", err)
	}
	var got review
	if err := json.Unmarshal(body, &got); err != nil {
		return nil, fmt.Errorf("decode the body: %w", err)
	}
	switch {
	case got.TypeMeta != reviewType:
		return nil, fmt.Errorf("the body must be an %s in %s, got %q in %q", reviewType.Kind, reviewType.APIVersion,
			got.Kind, got.APIVersion)
	case got.Request == nil:
		return nil, errors.New("the review has no request")
	case got.Request.Kind != metav1.GroupVersionKind(blueprint.GroupVersionKind):
		return nil, fmt.Errorf("only %s can be reviewed, got %s", blueprint.GroupVersionKind, got.Request.Kind)
	case len(got.Request.UID) > maxUIDBytes:
		return nil, fmt.Errorf("the UID of the request has more than %d bytes", maxUIDBytes)
	}
	return got.Request, nil
}

// timeoutOf returns the time within which a request must be answered. The API server sends its timeout as a query
// parameter.
func timeoutOf(r *http.Request) time.Duration {
	// A tenth of the timeout is reserved for sending the response.
	const numerator, denominator = 9, 10
	timeout, err := time.ParseDuration(r.URL.Query().Get("timeout"))
	if err != nil || timeout <= 0 || timeout > maxTimeout {
		timeout = maxTimeout
	}
	return timeout * numerator / denominator
}
