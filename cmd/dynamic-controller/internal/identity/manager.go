package identity

import (
	"cmp"
	"fmt"
	"math"
	"net/http"
	"time"

	"k8s.io/client-go/rest"
	"k8s.io/client-go/util/flowcontrol"
	"k8s.io/utils/clock"
	"k8s.io/utils/lru"

	"github.com/dynamic-controller/engine/cmd/dynamic-controller/internal/memory"
)

const (
	defaultMaxClients = 256
	// maxAnswers limits each cache of answers from the API server. Evicted answers are requested again.
	maxAnswers = 8192
)

// Options configures a Manager.
type Options struct {
	// Namespace is the platform's own namespace.
	Namespace string
	// DefaultServiceAccount is the name of the ServiceAccount for Blueprints without spec.serviceAccountName.
	DefaultServiceAccount string
	// AllowPlatformIdentity allows Blueprints to run with the platform's own identity if neither spec.serviceAccountName
	// nor DefaultServiceAccount is set.
	AllowPlatformIdentity bool
	// MaxClients limits the number of cached clients. Defaults to 256.
	MaxClients int
	// Clock determines when cached answers expire. Defaults to the real clock.
	Clock clock.PassiveClock
}

// Manager resolves identities and provides clients for them. It is safe for concurrent use.
type Manager struct {
	options Options

	// config and transport are shared by all clients.
	config    *rest.Config
	transport http.RoundTripper
	clients   *lru.Cache // dynamic.Interface by Identity

	own     *answers[string, Identity]
	consent *answers[consentQuestion, consent]
	access  *answers[accessQuestion, bool]
}

// New returns a Manager. Its clients are derived from config, which must be the platform's own fenced config. New does
// not send requests.
func New(config *rest.Config, options Options) (*Manager, error) {
	options.MaxClients = cmp.Or(options.MaxClients, defaultMaxClients)
	if options.Clock == nil {
		options.Clock = clock.RealClock{}
	}
	config = rest.CopyConfig(config)
	config.Impersonate = rest.ImpersonationConfig{}
	config.UserAgent = cmp.Or(config.UserAgent, rest.DefaultKubernetesUserAgent())
	if config.RateLimiter == nil && config.QPS >= 0 {
		qps, burst := cmp.Or(config.QPS, rest.DefaultQPS), cmp.Or(config.Burst, rest.DefaultBurst)
		config.RateLimiter = flowcontrol.NewTokenBucketRateLimiter(qps, burst)
	}
	transport, err := rest.TransportFor(config)
	if err != nil {
		return nil, fmt.Errorf("create the transport of impersonating clients: %w", err)
	}
	return &Manager{
		options: options, config: config, transport: memory.Transport{RoundTripper: budgeted{transport}},
		clients: lru.New(options.MaxClients),
		own:     newAnswers[string](options.Clock, func(Identity) time.Duration { return math.MaxInt64 }),
		consent: newAnswers[consentQuestion](options.Clock, func(c consent) time.Duration { return keep(c == consentGiven) }),
		access:  newAnswers[accessQuestion](options.Clock, keep),
	}, nil
}
