package webhook

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"strings"
	"unicode"

	admissionv1 "k8s.io/api/admission/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"

	"github.com/dynamic-controller/engine/cmd/dynamic-controller/internal/acceptance"
	"github.com/dynamic-controller/engine/cmd/dynamic-controller/internal/blueprint"
	"github.com/dynamic-controller/engine/cmd/dynamic-controller/internal/instances"
	"github.com/dynamic-controller/engine/internal/protect"
)

const (
	// maxMessageBytes is the maximum size of a condition's message.
	maxMessageBytes = 32 << 10
	// If all warnings together exceed 4096 characters, the API server truncates warnings with more than 256 characters.
	maxWarningBytes = 250
	maxWarnings     = 15
)

// Reasons for allowing a Blueprint without a review.
var (
	errLarge       = errors.New("it is too large")
	errBusy        = errors.New("other Blueprints are being checked")
	errSlow        = errors.New("the check took too long")
	errUnavailable = errors.New("the platform cannot check it at the moment")
	errNewer       = errors.New("it has fields from a newer version of the platform")
)

// respond returns the response to a request, except for its UID.
func (h *Handler) respond(ctx context.Context, r *request) *admissionv1.AdmissionResponse {
	isUpdate := r.Operation == admissionv1.Update
	switch {
	case r.Operation != admissionv1.Create && !isUpdate, r.SubResource != "":
		return allow()
	case isUpdate && hasSameSpec(r.Object.Raw, r.OldObject.Raw):
		return allow() // a Blueprint that would be rejected now can still be labeled and deleted
	case len(r.Object.Raw) > maxObjectBytes:
		return unchecked(errLarge)
	}
	return h.reviewInTime(ctx, r.Object.Raw)
}

// reviewInTime reviews a Blueprint. If ctx is cancelled first, it returns without the result. Compiling a Blueprint
// cannot be interrupted, so the review then continues in the background, and the next Blueprint waits for it.
func (h *Handler) reviewInTime(ctx context.Context, object []byte) *admissionv1.AdmissionResponse {
	select {
	case h.reviewing <- struct{}{}:
	case <-ctx.Done():
		return unchecked(errBusy)
	}
	reviewed := make(chan *admissionv1.AdmissionResponse, 1)
	go func() {
		defer func() { <-h.reviewing }()
		response := unchecked(errUnavailable)
		if panicked := protect.Call(func() { response = h.verdict(ctx, object) }); panicked != nil {
			h.log.Error(panicked, "Review of a Blueprint panicked", keyStack, string(panicked.Stack))
		}
		reviewed <- response
	}()
	select {
	case response := <-reviewed:
		return response
	case <-ctx.Done():
		return unchecked(errSlow)
	}
}

func (h *Handler) verdict(ctx context.Context, object []byte) *admissionv1.AdmissionResponse {
	var verdict acceptance.Verdict
	b, err := decode(object)
	if err == nil {
		verdict, err = h.review(ctx, b)
	}
	switch {
	case ctx.Err() != nil:
		return unchecked(errSlow)
	case runtime.IsStrictDecodingError(err):
		h.log.Info("Blueprint not reviewed", keyProblem, err.Error())
		return unchecked(errNewer)
	case err != nil:
		// The error can contain details of the platform and its network. Authors must not see them in the response.
		h.log.Info("Blueprint not reviewed", keyProblem, err.Error())
		return unchecked(errUnavailable)
	case verdict == acceptance.Verdict{}:
		return allow()
	case verdict.Permanent:
		return &admissionv1.AdmissionResponse{Result: &metav1.Status{
			Status: metav1.StatusFailure, Reason: metav1.StatusReasonInvalid, Code: http.StatusUnprocessableEntity,
			Message: blueprint.Cut(verdict.Message, maxMessageBytes),
		}}
	}
	return allow("the Blueprint is not accepted at the moment, with the reason "+verdict.Reason+":", verdict.Message)
}

// decode returns a Blueprint as it would be read from the cache. It returns a strict decoding error if the spec has
// unknown fields. The API server accepts such fields if the Blueprint CustomResourceDefinition is newer than this
// replica.
func decode(object []byte) (*blueprint.Blueprint, error) {
	u := &unstructured.Unstructured{}
	if err := u.UnmarshalJSON(object); err != nil {
		return nil, fmt.Errorf("decode the Blueprint: %w", err)
	}
	if _, err := instances.BlueprintTransform(u); err != nil {
		return nil, err
	}
	b, err := blueprint.FromUnstructured(u)
	if err != nil {
		return nil, err
	}
	spec, _ := u.Object["spec"].(map[string]any)
	return b, runtime.DefaultUnstructuredConverter.FromUnstructuredWithValidation(spec, &blueprint.Spec{}, true)
}

// hasSameSpec reports whether both objects have the same spec. The API server encodes equal specs identically.
func hasSameSpec(object, old []byte) bool {
	var specs [2]struct {
		Spec json.RawMessage `json:"spec"`
	}
	if json.Unmarshal(object, &specs[0]) != nil || json.Unmarshal(old, &specs[1]) != nil {
		return false
	}
	return bytes.Equal(specs[0].Spec, specs[1].Spec)
}

// allow returns a response that allows the request, with one warning for each line of the text.
func allow(text ...string) *admissionv1.AdmissionResponse {
	response := &admissionv1.AdmissionResponse{Allowed: true}
	for line := range strings.Lines(strings.Join(text, "\n")) {
		// The API server drops warnings with control characters.
		line = strings.TrimSpace(strings.Map(func(r rune) rune {
			if unicode.IsControl(r) {
				return ' '
			}
			return r
		}, line))
		if line != "" && len(response.Warnings) < maxWarnings {
			response.Warnings = append(response.Warnings, blueprint.Cut(line, maxWarningBytes))
		}
	}
	return response
}

// unchecked returns the response for a Blueprint that was not reviewed.
func unchecked(reason error) *admissionv1.AdmissionResponse {
	return allow(fmt.Sprintf("the Blueprint was not checked, because %v; see its Accepted condition", reason))
}
