package identity

import (
	"bytes"
	"encoding/json"
	"io"
	"net/http"
	"strings"
	"sync"
	"testing"
	"time"

	authenticationv1 "k8s.io/api/authentication/v1"
	authorizationv1 "k8s.io/api/authorization/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"
	clocktesting "k8s.io/utils/clock/testing"
)

const (
	platformNamespace = "platform-system"
	platformUser      = "system:serviceaccount:platform-system:controller"
)

// fakeServer is an http.RoundTripper that responds to reviews and ServiceAccount reads.
type fakeServer struct {
	mu       sync.Mutex                   // guards the fields below
	user     string                       // name of the platform's user
	accounts map[string]map[string]string // annotations by "namespace/name"
	allowed  map[string]bool              // keys are "user namespace verb resource"
	err      *apierrors.StatusError
	block    chan struct{} // if not nil, requests wait until it is closed
	requests []*http.Request
}

func (s *fakeServer) RoundTrip(r *http.Request) (*http.Response, error) {
	s.mu.Lock()
	s.requests = append(s.requests, r)
	block := s.block
	s.mu.Unlock()
	if block != nil {
		select {
		case <-block:
		case <-r.Context().Done():
			return nil, r.Context().Err()
		}
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.err != nil {
		return respond(r, int(s.err.ErrStatus.Code), s.err.ErrStatus)
	}
	_, path, _ := strings.Cut(r.URL.Path, "/namespaces/")
	switch {
	case strings.HasSuffix(r.URL.Path, "/selfsubjectreviews"):
		review := authenticationv1.SelfSubjectReview{}
		review.APIVersion, review.Kind = "authentication.k8s.io/v1", "SelfSubjectReview"
		review.Status.UserInfo.Username = s.user
		return respond(r, http.StatusCreated, review)
	case strings.HasSuffix(r.URL.Path, "/selfsubjectaccessreviews"):
		var review authorizationv1.SelfSubjectAccessReview
		if err := json.NewDecoder(r.Body).Decode(&review); err != nil {
			return nil, err
		}
		a := review.Spec.ResourceAttributes
		key := strings.Join([]string{r.Header.Get("Impersonate-User"), a.Namespace, a.Verb, a.Resource}, " ")
		review.Status.Allowed = s.allowed[key]
		return respond(r, http.StatusCreated, review)
	}
	namespace, name, _ := strings.Cut(path, "/serviceaccounts/")
	annotations, found := s.accounts[namespace+"/"+name]
	if !found {
		return respond(r, http.StatusNotFound, apierrors.NewNotFound(serviceAccounts.GroupResource(), name).ErrStatus)
	}
	return respond(r, http.StatusOK, metav1.PartialObjectMetadata{
		TypeMeta:   metav1.TypeMeta{APIVersion: "v1", Kind: "ServiceAccount"},
		ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name, Annotations: annotations},
	})
}

func respond(r *http.Request, code int, body any) (*http.Response, error) {
	data, err := json.Marshal(body)
	if err != nil {
		return nil, err
	}
	return &http.Response{
		StatusCode: code, Request: r, Header: http.Header{"Content-Type": {"application/json"}},
		Body: io.NopCloser(bytes.NewReader(data)),
	}, nil
}

func (s *fakeServer) count() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return len(s.requests)
}

// last returns the last request.
func (s *fakeServer) last() *http.Request {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.requests[len(s.requests)-1]
}

func (s *fakeServer) change(change func()) {
	s.mu.Lock()
	defer s.mu.Unlock()
	change()
}

// newFake returns a Manager and its server. ServiceAccount shop/web allows the Blueprints shops and websites.
func newFake(t *testing.T, options Options) (*Manager, *fakeServer, *clocktesting.FakePassiveClock) {
	t.Helper()
	s := &fakeServer{
		user:     platformUser,
		accounts: map[string]map[string]string{"shop/web": {AllowedBlueprints: "shops, websites"}},
		allowed:  map[string]bool{"system:serviceaccount:shop:web shop get configmaps": true},
	}
	fakeClock := clocktesting.NewFakePassiveClock(time.Now())
	options.Namespace, options.Clock = platformNamespace, fakeClock
	m, err := New(&rest.Config{Host: "http://api", Transport: s, QPS: -1}, options)
	if err != nil {
		t.Fatal(err)
	}
	return m, s, fakeClock
}
