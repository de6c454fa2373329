package serverfence

import (
	"bytes"
	"encoding/json"
	"errors"
	"io"
	"net/http"
	"testing"
	"testing/synctest"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/rest"
)

// apiServer answers the requests of Probe.
type apiServer struct {
	t      *testing.T
	holder string
	// response is the error message for a write of the holder identity, which is empty if the write is admitted.
	response func(holder string) string
}

const holderHeader = "Impersonate-Extra-Fence.dynamic-Controller.github.io%2fholder"

func (s *apiServer) RoundTrip(r *http.Request) (*http.Response, error) {
	status, object := http.StatusOK, runtime.Object(&coordinationv1.Lease{
		TypeMeta: metav1.TypeMeta{APIVersion: coordinationv1.SchemeGroupVersion.String(), Kind: "Lease"},
		Spec:     coordinationv1.LeaseSpec{HolderIdentity: &s.holder},
	})
	if r.Method == http.MethodPost {
		status, object = http.StatusCreated, &corev1.ConfigMap{
			TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "ConfigMap"},
		}
		if r.URL.Query().Get("dryRun") != metav1.DryRunAll {
			s.t.Errorf("%s is not a dry run", r.URL)
		}
		if message := s.response(r.Header.Get(holderHeader)); message != "" {
			status, object = http.StatusForbidden, &metav1.Status{
				TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "Status"}, Status: metav1.StatusFailure,
				Reason: metav1.StatusReasonForbidden, Message: message, Code: http.StatusForbidden,
			}
		}
	}
	body, err := json.Marshal(object)
	return &http.Response{
		StatusCode: status, Header: http.Header{"Content-Type": {runtime.ContentTypeJSON}},
		Body: io.NopCloser(bytes.NewReader(body)), Request: r,
	}, err
}

func TestProbe(t *testing.T) {
	deniesAllBut := func(admitted string) func(string) string {
		return func(holder string) string {
			if holder == admitted {
				return ""
			}
			return Denied + "ns/l"
		}
	}
	for name, test := range map[string]struct {
		holder   string
		response func(string) string
		want     error
		other    bool // another error
		lasts    time.Duration
	}{
		"enforced":            {holder: "a", response: deniesAllBut("a")},
		"enforced for shards": {holder: "shards=2/a", response: deniesAllBut("shards=2/a")},
		"nobody leads":        {response: deniesAllBut("nobody")},
		"not enforced":        {holder: "a", response: func(string) string { return "" }, want: ErrNotEnforced},
		"outdated":            {holder: "a", response: deniesAllBut("b"), want: ErrOutdated, lasts: 2 * time.Second},
		"no permission":       {holder: "a", response: func(string) string { return "cannot impersonate" }, other: true},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				cfg := &rest.Config{Transport: &apiServer{t: t, holder: test.holder, response: test.response}, QPS: -1}
				began := time.Now()
				err := Probe(t.Context(), cfg, Options{Name: "p", LeaseNamespace: "ns", LeaseName: "l", Username: "u"})
				isKnown := errors.Is(err, ErrNotEnforced) || errors.Is(err, ErrOutdated)
				if !test.other && !errors.Is(err, test.want) || test.other != (err != nil && !isKnown) {
					t.Errorf("got error %v", err)
				}
				if lasted := time.Since(began); lasted != test.lasts {
					t.Errorf("Probe returned after %v, want %v", lasted, test.lasts)
				}
			})
		})
	}
}

// An API server that observes the holder with a delay enforces the policy.
func TestProbe_WaitsForTheHolder(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		began := time.Now()
		server := &apiServer{t: t, holder: "a", response: func(holder string) string {
			if holder == "a" && time.Since(began) >= time.Second {
				return ""
			}
			return Denied + "ns/l"
		}}
		err := Probe(t.Context(), &rest.Config{Transport: server, QPS: -1},
			Options{Name: "p", LeaseNamespace: "ns", LeaseName: "l", Username: "u"})
		if err != nil {
			t.Error(err)
		}
	})
}
