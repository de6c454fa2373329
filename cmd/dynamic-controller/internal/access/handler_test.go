package access

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/go-logr/logr"
	"github.com/go-logr/logr/funcr"
	"k8s.io/apiserver/pkg/authentication/authenticator"
	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/apiserver/pkg/authorization/authorizer"
	"k8s.io/apiserver/pkg/endpoints/request"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/util/flowcontrol"
)

func TestProtect_CallsTheHandlerForPermittedRequestsOnly(t *testing.T) {
	var asked authorizer.Attributes
	c := &Controller{
		log: logr.Discard(),
		authenticator: authenticator.RequestFunc(func(r *http.Request) (*authenticator.Response, bool, error) {
			name := r.Header.Get("User")
			if name == "error" {
				return nil, false, errors.New("secret details")
			}
			return &authenticator.Response{User: &user.DefaultInfo{Name: name}}, name != "", nil
		}),
		authorizer: authorizer.AuthorizerFunc(
			func(_ context.Context, a authorizer.Attributes) (authorizer.Decision, string, error) {
				asked = a
				switch a.GetUser().GetName() {
				case "reader":
					return authorizer.DecisionAllow, "", nil
				case "denied":
					return authorizer.DecisionDeny, "", nil
				case "unknown":
					return authorizer.DecisionNoOpinion, "", errors.New("secret details")
				}
				return authorizer.DecisionNoOpinion, "", nil
			}),
	}
	calls := 0
	h := c.Protect(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		calls++
		if u, ok := request.UserFrom(r.Context()); !ok || u.GetName() != "reader" {
			t.Errorf("the context contains the user %v", u)
		}
	}))
	for name, want := range map[string]int{
		"":        http.StatusUnauthorized,
		"error":   http.StatusUnauthorized,
		"nobody":  http.StatusForbidden,
		"denied":  http.StatusForbidden,
		"unknown": http.StatusInternalServerError,
		"reader":  http.StatusOK,
	} {
		calls = 0
		w, r := httptest.NewRecorder(), httptest.NewRequest(http.MethodPut, "/debug/flags/v?a=b", nil)
		r.Header.Set("User", name)
		h.ServeHTTP(w, r)
		if body := w.Body.String(); w.Code != want || strings.Contains(body, "secret") {
			t.Errorf("%q: got %d, %q, want %d", name, w.Code, body, want)
		}
		denied := want == http.StatusUnauthorized || want == http.StatusForbidden
		if got := w.Header().Get("Connection"); (got == "close") != denied {
			t.Errorf("%q: got the header Connection %q", name, got)
		}
		if allowed := calls == 1; allowed != (want == http.StatusOK) {
			t.Errorf("%q: the handler was called %d times", name, calls)
		}
	}
	if asked.GetVerb() != "put" || asked.GetPath() != "/debug/flags/v" || asked.IsResourceRequest() {
		t.Errorf("the access review was about %+v", asked)
	}
}

// reviewServer answers TokenReviews with a status code and a body, and counts them.
func reviewServer(t *testing.T, code int, body string) (c *Controller, reviews *atomic.Int32) {
	t.Helper()
	reviews = &atomic.Int32{}
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path != "/apis/authentication.k8s.io/v1/tokenreviews" {
			t.Errorf("got a request for %s", r.URL.Path)
		}
		reviews.Add(1)
		w.Header().Set("Content-Type", "application/json")
		w.WriteHeader(code)
		fmt.Fprint(w, body)
	}))
	t.Cleanup(server.Close)
	cfg := &rest.Config{Host: server.URL, RateLimiter: flowcontrol.NewFakeNeverRateLimiter()}
	c, err := New(logr.Discard(), cfg)
	if err != nil {
		t.Fatal(err)
	}
	return c, reviews
}

// authenticate sends requests with one token and fails the test unless the results are equal to want.
func authenticate(t *testing.T, c *Controller, requests int, want string) {
	t.Helper()
	for range requests {
		r := httptest.NewRequest(http.MethodGet, "/metrics", nil)
		r.Header.Set("Authorization", "Bearer token")
		response, ok, err := c.authenticator.AuthenticateRequest(r)
		got := fmt.Sprint(ok, " ", err)
		if ok {
			got = fmt.Sprintf("%s %s", response.User.GetName(), response.User.GetExtra())
		}
		if !strings.Contains(got, want) {
			t.Fatalf("got %q, want %q", got, want)
		}
	}
}

// The reviews do not use the config's rate limiter, which fails each request.
func TestController_CachesReviewsOfTokens(t *testing.T) {
	for name, test := range map[string]struct {
		code              int
		body, want        string
		requests, reviews int
	}{
		"rejected": {http.StatusCreated, `{"status":{"error":"unknown token"}}`, "false invalid bearer token", 100, 1},
		"accepted": {
			http.StatusCreated, `{"status":{"authenticated":true,"user":{"username":"reader","extra":{"a":["b"]}}}}`,
			"reader map[a:[b]]", 100, 1,
		},
		"failed": {
			http.StatusForbidden, `{"apiVersion":"v1","kind":"Status","status":"Failure","message":"no permission"}`,
			"false no permission", 3, 3,
		},
	} {
		t.Run(name, func(t *testing.T) {
			c, reviews := reviewServer(t, test.code, test.body)
			authenticate(t, c, test.requests, test.want)
			if got := int(reviews.Load()); got != test.reviews {
				t.Errorf("got %d reviews, want %d", got, test.reviews)
			}
		})
	}
}

func TestProtect_LogsFailedReviewsAsErrorsUnlessTheRequestWasCancelled(t *testing.T) {
	var logged []string
	c := &Controller{
		log: funcr.New(func(_, line string) { logged = append(logged, line) }, funcr.Options{Verbosity: 1}),
		authenticator: authenticator.RequestFunc(func(*http.Request) (*authenticator.Response, bool, error) {
			return &authenticator.Response{User: &user.DefaultInfo{Name: "reader"}}, true, nil
		}),
		authorizer: authorizer.AuthorizerFunc(
			func(context.Context, authorizer.Attributes) (authorizer.Decision, string, error) {
				return authorizer.DecisionNoOpinion, "", errors.New("not reviewed")
			}),
	}
	h := c.Protect(http.NotFoundHandler())
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	for _, want := range []string{
		`"msg"="Access not reviewed" "error"="not reviewed"`, `"level"=1 "msg"="Request cancelled"`,
	} {
		logged = nil
		h.ServeHTTP(httptest.NewRecorder(), httptest.NewRequestWithContext(ctx, http.MethodGet, "/metrics", nil))
		if len(logged) != 1 || !strings.Contains(logged[0], want) {
			t.Errorf("logged %q, want %s", logged, want)
		}
		cancel()
	}
}
