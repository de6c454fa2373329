package servingcert

import (
	"context"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/clock"
)

// Options configures a Manager or a Loader. All fields except Clock are required.
type Options struct {
	// Namespace is the namespace of the Service and of the Secret.
	Namespace string
	// Name is the name of the Service, of the Secret and of the ValidatingWebhookConfiguration.
	Name string
	// Webhook is the name of the webhook in the ValidatingWebhookConfiguration.
	Webhook string
	// Clock defaults to the real clock.
	Clock clock.Clock
}

func (o Options) withDefaults() Options {
	if o.Clock == nil {
		o.Clock = clock.RealClock{}
	}
	return o
}

// serverName returns the DNS name of the Service. API servers require a certificate for this name.
func (o Options) serverName() string { return o.Name + "." + o.Namespace + ".svc" }

const (
	// requestTimeout limits the time for all requests in one attempt.
	requestTimeout = 10 * time.Second
	// firstRetry is the delay after the first failed attempt. It doubles with each further failure.
	firstRetry = time.Second
)

// Keys of log values.
const (
	keyAuthorities   = "authorities"
	keyConfiguration = "configuration"
	keyExpires       = "expires"
	keyProblem       = "problem"
	keyReasons       = "reasons"
)

// secrets is a client that reads Secrets.
type secrets interface {
	Get(ctx context.Context, name string, options metav1.GetOptions) (*corev1.Secret, error)
}

// repeat calls f immediately and then at the given interval, or sooner after a failure, until ctx is cancelled.
func (o Options) repeat(ctx context.Context, interval time.Duration, f func(context.Context) error) {
	retry := firstRetry
	for ctx.Err() == nil {
		wait := interval
		attempt, cancel := context.WithTimeout(ctx, requestTimeout)
		err := f(attempt)
		cancel()
		if err != nil {
			wait, retry = retry, min(2*retry, interval)
		} else {
			retry = firstRetry
		}
		timer := o.Clock.NewTimer(wait)
		select {
		case <-ctx.Done():
		case <-timer.C():
		}
		timer.Stop()
	}
}
