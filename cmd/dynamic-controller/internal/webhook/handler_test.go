package webhook

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"testing"
	"testing/synctest"

	"github.com/go-logr/logr"
	admissionv1 "k8s.io/api/admission/v1"

	"github.com/dynamic-controller/engine/cmd/dynamic-controller/internal/acceptance"
	"github.com/dynamic-controller/engine/cmd/dynamic-controller/internal/blueprint"
)

// accept is a ReviewFunc that accepts all Blueprints.
func accept(context.Context, *blueprint.Blueprint) (acceptance.Verdict, error) {
	return acceptance.Verdict{}, nil
}

// refuse is a ReviewFunc that rejects all Blueprints.
func refuse(context.Context, *blueprint.Blueprint) (acceptance.Verdict, error) {
	return acceptance.Verdict{Reason: "Invalid", Message: "spec.a: is wrong\nspec.b: is wrong", Permanent: true}, nil
}

func object(spec string) string {
	return `{"apiVersion": "platform.example.com/v1alpha1", "kind": "Blueprint", "metadata": {"name": "shops"}, "spec": ` +
		spec + `}`
}

// body returns a review of a request with these fields.
func body(fields string) string {
	return `{"apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview", "request": {"uid": "u", "kind": ` +
		`{"group": "platform.example.com", "version": "v1alpha1", "kind": "Blueprint"}, ` + fields + `}}`
}

func creation(spec string) string { return body(`"operation": "CREATE", "object": ` + object(spec)) }

func post(h http.Handler, body, timeout string) *httptest.ResponseRecorder {
	w := httptest.NewRecorder()
	r := httptest.NewRequest(http.MethodPost, Path+"?timeout="+timeout, strings.NewReader(body))
	r.Header.Set("Content-Type", "application/json")
	h.ServeHTTP(w, r)
	return w
}

// reviewed sends a review and returns the response.
func reviewed(t *testing.T, h http.Handler, body string) *admissionv1.AdmissionResponse {
	t.Helper()
	response := parsed(t, post(h, body, "5s"))
	if response.UID != "u" {
		t.Errorf("got UID %q", response.UID)
	}
	return response
}

func parsed(t *testing.T, w *httptest.ResponseRecorder) *admissionv1.AdmissionResponse {
	t.Helper()
	var review admissionv1.AdmissionReview
	if err := json.Unmarshal(w.Body.Bytes(), &review); err != nil || w.Code != http.StatusOK ||
		review.TypeMeta != reviewType || review.Response == nil {
		t.Fatalf("got %d, %s", w.Code, w.Body)
	}
	return review.Response
}

func TestHandler_RejectsOtherRequests(t *testing.T) {
	for name, test := range map[string]struct {
		method, contentType, body string
		code                      int
		want                      string
	}{
		"another method": {method: http.MethodGet, code: http.StatusMethodNotAllowed, want: "the method must be POST"},
		"another content type": {
			contentType: "application/yaml", code: http.StatusUnsupportedMediaType,
			want: "the content type must be application/json",
		},
		"no content type": {
			contentType: "none", code: http.StatusUnsupportedMediaType, want: "the content type must be application/json",
		},
		"an object that is too large": {
			body: creation(`"` + strings.Repeat("a", maxBodyBytes) + `"`), code: http.StatusRequestEntityTooLarge,
			want: "the body is larger than 7340032 bytes",
		},
		"an incomplete body": {body: `{"apiVersion"`, code: http.StatusBadRequest, want: "decode the body: "},
		"another version of reviews": {
			body: strings.Replace(creation("{}"), "admission.k8s.io/v1", "admission.k8s.io/v1beta1", 1),
			code: http.StatusBadRequest,
			want: `the body must be an AdmissionReview in admission.k8s.io/v1, got "AdmissionReview" in ` +
				`"admission.k8s.io/v1beta1"`,
		},
		"a review without a request": {
			body: `{"apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview"}`, code: http.StatusBadRequest,
			want: "the review has no request",
		},
		"a long UID": {
			body: strings.Replace(creation("{}"), `"uid": "u"`, `"uid": "`+strings.Repeat("u", 257)+`"`, 1),
			code: http.StatusBadRequest, want: "the UID of the request has more than 256 bytes",
		},
		"another kind of object": {
			body: strings.Replace(creation("{}"), `"kind": "Blueprint"`, `"kind": "Pod"`, 1), code: http.StatusBadRequest,
			want: "only platform.example.com/v1alpha1, Kind=Blueprint can be reviewed",
		},
	} {
		t.Run(name, func(t *testing.T) {
			method, contentType := http.MethodPost, "application/json; charset=utf-8"
			if test.method != "" {
				method = test.method
			}
			if test.contentType != "" {
				contentType = strings.TrimPrefix(test.contentType, "none")
			}
			r := httptest.NewRequest(method, Path, strings.NewReader(test.body))
			r.Header.Set("Content-Type", contentType)
			w := httptest.NewRecorder()
			NewHandler(logr.Discard(), accept).ServeHTTP(w, r)
			if w.Code != test.code || !strings.Contains(w.Body.String(), test.want) {
				t.Errorf("got %d, %s; want %d, %s", w.Code, w.Body, test.code, test.want)
			}
		})
	}
}

func TestHandler_ReturnsTheVerdict(t *testing.T) {
	long := strings.Repeat("a", 300)
	for name, test := range map[string]struct {
		verdict  acceptance.Verdict
		err      error
		message  string
		warnings []string
	}{
		"accepted": {},
		"permanent problems": {
			verdict: acceptance.Verdict{Reason: "Invalid", Message: "spec.a: is wrong\nspec.b: is wrong", Permanent: true},
			message: "spec.a: is wrong\nspec.b: is wrong",
		},
		"a long message": {
			verdict: acceptance.Verdict{Reason: "Invalid", Message: strings.Repeat("a", 40<<10), Permanent: true},
			message: strings.Repeat("a", 32<<10) + "...",
		},
		"other problems": {
			verdict: acceptance.Verdict{Reason: "PermissionMissing", Message: "spec.type:\tnot allowed\n" + long},
			warnings: []string{
				"the Blueprint is not accepted at the moment, with the reason PermissionMissing:",
				"spec.type: not allowed", long[:250] + "...",
			},
		},
		"an error": {
			err: errors.New("dial tcp 10.0.0.1: connection refused"),
			warnings: []string{
				"the Blueprint was not checked, because the platform cannot check it at the moment; see its Accepted condition",
			},
		},
	} {
		t.Run(name, func(t *testing.T) {
			h := NewHandler(logr.Discard(), func(context.Context, *blueprint.Blueprint) (acceptance.Verdict, error) {
				return test.verdict, test.err
			})
			got := reviewed(t, h, creation("{}"))
			if got.Allowed != (test.message == "") || !slices.Equal(got.Warnings, test.warnings) {
				t.Errorf("got %+v", got)
			}
			if test.message != "" && (got.Result == nil || got.Result.Message != test.message ||
				got.Result.Reason != "Invalid" || got.Result.Code != http.StatusUnprocessableEntity) {
				t.Errorf("got result %+v", got.Result)
			}
		})
	}
}

func TestHandler_LimitsWarnings(t *testing.T) {
	h := NewHandler(logr.Discard(), func(context.Context, *blueprint.Blueprint) (acceptance.Verdict, error) {
		return acceptance.Verdict{Reason: "Invalid", Message: strings.Repeat(strings.Repeat("é", 1000)+"\n", 100)}, nil
	})
	total := 0
	for _, warning := range reviewed(t, h, creation("{}")).Warnings {
		total += len(warning)
	}
	if total > 4096 {
		t.Errorf("got warnings with %d bytes, which the API server truncates", total)
	}
}

func TestHandler_ReviewsOnlyChangesOfTheSpec(t *testing.T) {
	update := func(old, now string) string {
		return body(`"operation": "UPDATE", "object": ` + object(now) + `, "oldObject": ` + object(old))
	}
	for name, test := range map[string]struct {
		body    string
		allowed bool
	}{
		"a creation":                      {creation("{}"), false},
		"an update to the spec":           {update("{}", `{"serviceAccountName": "a"}`), false},
		"an update to other fields":       {update(`{"a": 1}`, `{"a": 1}`), true},
		"an update without an old object": {body(`"operation": "UPDATE", "object": ` + object("{}")), false},
		"a deletion":                      {body(`"operation": "DELETE", "oldObject": ` + object("{}")), true},
		"an update to the status": {
			body(`"operation": "UPDATE", "subResource": "status", "object": ` + object("{}")), true,
		},
	} {
		if got := reviewed(t, NewHandler(logr.Discard(), refuse), test.body); got.Allowed != test.allowed {
			t.Errorf("%s: got %+v", name, got)
		}
	}
}

func TestHandler_DoesNotReviewFieldsOfANewerVersion(t *testing.T) {
	const want = "the Blueprint was not checked, because it has fields from a newer version of the platform; " +
		"see its Accepted condition"
	for name, spec := range map[string]string{
		"in the spec":              `{"newField": 1}`,
		"in a resource":            `{"resources": [{"id": "a", "newField": 1}]}`,
		"instead of another field": `{"type": {"newSchema": {}}, "resources": [{"id": "a", "newTemplate": {}}]}`,
		"in a reference":           `{"resources": [{"id": "a", "externalRef": {"metadata": {"newField": 1}}}]}`,
		"in a printer column":      `{"type": {"printerColumns": [{"name": "a", "newField": 1}]}}`,
	} {
		got := reviewed(t, NewHandler(logr.Discard(), refuse), creation(spec))
		if !got.Allowed || !slices.Equal(got.Warnings, []string{want}) {
			t.Errorf("%s: got %+v", name, got)
		}
	}
	for name, spec := range map[string]string{
		"in a template": `{"resources": [{"id": "a", "template": {"field": 1}}]}`,
		"in a schema":   `{"type": {"schema": {"field": 1}, "status": {"field": 1}}}`,
	} {
		if got := reviewed(t, NewHandler(logr.Discard(), refuse), creation(spec)); got.Allowed {
			t.Errorf("%s: got %+v", name, got)
		}
	}
}

func TestHandler_ReviewsOversizedSpecsWithoutTheirTemplates(t *testing.T) {
	h := NewHandler(logr.Discard(), func(_ context.Context, b *blueprint.Blueprint) (acceptance.Verdict, error) {
		if b.Name != "shops" || b.Annotations[blueprint.OversizedAnnotation] == "" || len(b.Spec.Resources) > 0 {
			t.Errorf("got %+v", b)
		}
		return acceptance.Verdict{}, nil
	})
	reviewed(t, h, creation(`{"resources": [{"id": "`+strings.Repeat("a", blueprint.MaxSpecBytes)+`"}]}`))
}

func TestHandler_DoesNotDecodeLargeObjects(t *testing.T) {
	got := reviewed(t, NewHandler(logr.Discard(), refuse), creation(`"`+strings.Repeat("a", maxObjectBytes)+`"`))
	if !got.Allowed || len(got.Warnings) != 1 || !strings.Contains(got.Warnings[0], "it is too large") {
		t.Errorf("got %+v", got)
	}
}

func TestHandler_PanicIsContained(t *testing.T) {
	calls := 0
	h := NewHandler(logr.Discard(), func(context.Context, *blueprint.Blueprint) (acceptance.Verdict, error) {
		if calls++; calls == 1 {
			panic("on purpose")
		}
		return acceptance.Verdict{}, nil
	})
	if got := reviewed(t, h, creation("{}")); !got.Allowed || len(got.Warnings) != 1 {
		t.Errorf("got %+v", got)
	}
	if got := reviewed(t, h, creation("{}")); !got.Allowed || len(got.Warnings) != 0 {
		t.Errorf("after the panic: got %+v", got)
	}
}

func TestHandler_RespondsInTimeAndReviewsOneBlueprintAtATime(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		release, running := make(chan struct{}), 0
		h := NewHandler(logr.Discard(), func(context.Context, *blueprint.Blueprint) (acceptance.Verdict, error) {
			if running++; running > 1 {
				t.Error("two Blueprints are reviewed concurrently")
			}
			<-release // compiling cannot be interrupted
			running--
			return acceptance.Verdict{}, nil
		})
		warnings := make(chan string, maxRequests+1)
		for range maxRequests {
			go func() { warnings <- strings.Join(reviewed(t, h, creation("{}")).Warnings, "\n") }()
		}
		synctest.Wait()
		go func() { // one more than maxRequests
			warnings <- fmt.Sprint(post(h, creation("{}"), "1s").Code)
		}()
		got := map[string]int{}
		for range maxRequests + 1 {
			w := <-warnings // the fake clock advances until the requests time out
			w, _, _ = strings.Cut(w, "; see")
			got[w]++
		}
		const unchecked = "the Blueprint was not checked, because "
		if got[unchecked+errSlow.Error()] != 1 || got[unchecked+errBusy.Error()] != maxRequests-1 || got["503"] != 1 {
			t.Errorf("got %v", got)
		}
		stopped := make(chan struct{})
		go func() {
			h.Stop()
			close(stopped)
		}()
		synctest.Wait()
		select {
		case <-stopped:
			t.Error("Stop returned while a Blueprint was being reviewed")
		default:
		}
		close(release)
		<-stopped
	})
}

func TestHandler_UsesTheTimeoutOfTheRequest(t *testing.T) {
	for text, want := range map[string]string{"1s": "900ms", "": "4.5s", "30s": "4.5s", "-1s": "4.5s", "x": "4.5s"} {
		r := httptest.NewRequest(http.MethodPost, Path+"?timeout="+text, bytes.NewReader(nil))
		if got := timeoutOf(r).String(); got != want {
			t.Errorf("%q: got %s, want %s", text, got, want)
		}
	}
}
