package access

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"strings"
	"time"

	"github.com/go-logr/logr"
	reviewv1 "k8s.io/api/authentication/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/apiserver/pkg/authentication/authenticator"
	"k8s.io/apiserver/pkg/authentication/request/bearertoken"
	"k8s.io/apiserver/pkg/authentication/token/cache"
	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/apiserver/pkg/authorization/authorizer"
	"k8s.io/apiserver/pkg/endpoints/request"
	"k8s.io/apiserver/pkg/util/webhook"
	webhookauthorizer "k8s.io/apiserver/plugin/pkg/authorizer/webhook"
	"k8s.io/apiserver/plugin/pkg/authorizer/webhook/metrics"
	authenticationv1 "k8s.io/client-go/kubernetes/typed/authentication/v1"
	authorizationv1 "k8s.io/client-go/kubernetes/typed/authorization/v1"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/util/flowcontrol"
)

const (
	// cacheTTL is the time for which the results of reviews are cached, as in Kubernetes components. Errors are not
	// cached.
	cacheTTL = 10 * time.Second
	// requestTimeout limits each review.
	requestTimeout = 3 * time.Second
	// qps and burst limit the review requests that clients without a valid token can cause.
	qps, burst = 20, 40
)

// retries returns the delays between attempts to send a review.
func retries() wait.Backoff {
	return wait.Backoff{Duration: 100 * time.Millisecond, Factor: 2, Jitter: 0.2, Steps: 2}
}

// Controller authenticates and authorizes requests. It is safe for concurrent use.
type Controller struct {
	log           logr.Logger
	authenticator authenticator.Request
	authorizer    authorizer.Authorizer
}

// New returns a Controller that sends reviews to the API server of cfg. The reviews do not use cfg's rate limiter,
// but have their own. New sends no requests.
func New(log logr.Logger, cfg *rest.Config) (*Controller, error) {
	cfg = rest.CopyConfig(cfg)
	cfg.Timeout = requestTimeout
	cfg.RateLimiter = flowcontrol.NewTokenBucketRateLimiter(qps, burst)
	authentication, err1 := authenticationv1.NewForConfig(cfg)
	authorization, err2 := authorizationv1.NewForConfig(cfg)
	if err := errors.Join(err1, err2); err != nil {
		return nil, fmt.Errorf("create the clients for access reviews: %w", err)
	}
	// The compiler can be nil because there are no match conditions.
	users, err := webhookauthorizer.NewFromInterface(authorization, cacheTTL, cacheTTL, retries(),
		authorizer.DecisionNoOpinion, metrics.NoopAuthorizerMetrics{}, nil)
	if err != nil {
		return nil, fmt.Errorf("create the authorizer: %w", err)
	}
	tokens := cache.New(&tokenReviewer{log, authentication.TokenReviews()}, false, cacheTTL, cacheTTL)
	return &Controller{log: log, authenticator: bearertoken.New(tokens), authorizer: users}, nil
}

// tokenReviewer authenticates tokens. Unlike Kubernetes' webhook authenticator, it returns no error for a
// rejected token, because errors are not cached.
type tokenReviewer struct {
	log    logr.Logger
	client authenticationv1.TokenReviewInterface
}

// AuthenticateToken implements [authenticator.Token].
func (t *tokenReviewer) AuthenticateToken(ctx context.Context, token string) (*authenticator.Response, bool, error) {
	ctx, cancel := context.WithTimeout(ctx, requestTimeout)
	defer cancel()
	var review *reviewv1.TokenReview
	err := webhook.WithExponentialBackoff(ctx, retries(), func() (err error) {
		review, err = t.client.Create(ctx, &reviewv1.TokenReview{Spec: reviewv1.TokenReviewSpec{Token: token}},
			metav1.CreateOptions{})
		return err
	}, webhook.DefaultShouldRetry)
	if err != nil {
		t.log.Error(err, "Token not reviewed")
		return nil, false, err
	}
	if !review.Status.Authenticated {
		t.log.V(1).Info("Token rejected", "problem", review.Status.Error)
		return nil, false, nil
	}
	reviewed := review.Status.User
	extra := make(map[string][]string, len(reviewed.Extra))
	for key, values := range reviewed.Extra {
		extra[key] = values
	}
	return &authenticator.Response{User: &user.DefaultInfo{
		Name: reviewed.Username, UID: reviewed.UID, Groups: reviewed.Groups, Extra: extra,
	}}, true, nil
}

// Protect wraps handler so that it is called only for authorized requests. The user must be allowed to access the path
// of the request as a non-resource URL, with the method in lower case as the verb. The request's context contains the
// user: see [request.UserFrom]. The connection of a denied request is closed, so that denied clients cannot occupy all
// connections.
func (c *Controller) Protect(handler http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		authenticated, ok, err := c.authenticator.AuthenticateRequest(r)
		if err != nil {
			c.log.V(1).Info("Token not accepted", "problem", err.Error())
		}
		if err != nil || !ok {
			w.Header().Set("WWW-Authenticate", "Bearer")
			w.Header().Set("Connection", "close")
			http.Error(w, "Unauthorized", http.StatusUnauthorized)
			return
		}
		verb := strings.ToLower(r.Method)
		decision, reason, err := c.authorizer.Authorize(r.Context(), authorizer.AttributesRecord{
			User: authenticated.User, Verb: verb, Path: r.URL.Path,
		})
		switch {
		case err != nil && r.Context().Err() != nil:
			c.log.V(1).Info("Request cancelled", "user", authenticated.User.GetName(), "path", r.URL.Path)
			http.Error(w, "the request was cancelled", http.StatusInternalServerError)
		case err != nil:
			c.log.Error(err, "Access not reviewed", "user", authenticated.User.GetName(), "path", r.URL.Path)
			http.Error(w, "the access review failed", http.StatusInternalServerError)
		case decision != authorizer.DecisionAllow:
			c.log.V(1).Info("Access denied", "user", authenticated.User.GetName(), "path", r.URL.Path, "reason", reason)
			w.Header().Set("Connection", "close")
			http.Error(w, fmt.Sprintf("user %q cannot %s path %q", authenticated.User.GetName(), verb, r.URL.Path),
				http.StatusForbidden)
		default:
			handler.ServeHTTP(w, r.WithContext(request.WithUser(r.Context(), authenticated.User)))
		}
	})
}
