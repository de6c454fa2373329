package servingcert

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"sync/atomic"
	"time"

	"github.com/go-logr/logr"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	coreclient "k8s.io/client-go/kubernetes/typed/core/v1"
	"k8s.io/client-go/rest"
)

// loadInterval is the interval at which a Loader reads the Secret. It must be much shorter than settled.
const loadInterval = 30 * time.Second

// Loader reads the certificate from the Secret. Every replica runs it. It is safe for concurrent use.
type Loader struct {
	log     logr.Logger
	options Options
	secrets secrets
	current atomic.Pointer[tls.Certificate]
	problem string // last logged problem; used only by Run
}

// NewLoader returns a Loader without a certificate.
func NewLoader(log logr.Logger, cfg *rest.Config, options Options) (*Loader, error) {
	core, err := coreclient.NewForConfig(cfg)
	if err != nil {
		return nil, fmt.Errorf("create the client for the webhook's certificate: %w", err)
	}
	return newLoader(log, core.Secrets(options.Namespace), options), nil
}

func newLoader(log logr.Logger, secrets secrets, options Options) *Loader {
	return &Loader{log: log, options: options.withDefaults(), secrets: secrets}
}

// GetCertificate returns the last usable certificate. It is used as the GetCertificate function of a [tls.Config].
func (l *Loader) GetCertificate(*tls.ClientHelloInfo) (*tls.Certificate, error) {
	if current := l.current.Load(); current != nil {
		return current, nil
	}
	return nil, errors.New("the certificate of the webhook has not been read yet")
}

// Expires returns when the last usable certificate expires. It returns the zero time if no certificate is usable.
func (l *Loader) Expires() time.Time {
	if current := l.current.Load(); current != nil {
		return current.Leaf.NotAfter
	}
	return time.Time{}
}

// Run reads the certificate repeatedly until ctx is cancelled. If the Secret cannot be read or used, the last
// certificate is kept. Run implements replica.Runnable.
func (l *Loader) Run(ctx context.Context) error {
	l.options.repeat(ctx, loadInterval, func(attempt context.Context) error {
		err := l.load(attempt)
		switch {
		case ctx.Err() != nil:
		case err == nil:
			l.problem = ""
		case err.Error() != l.problem:
			l.problem = err.Error()
			// This is not logged as an error, because the leader may not have created the certificate yet. The leader logs its
			// own failures.
			l.log.Info("Webhook certificate not loaded, will retry", keyProblem, l.problem)
		}
		return err
	})
	return nil
}

func (l *Loader) load(ctx context.Context) error {
	fail := func(verb string, err error) error {
		return fmt.Errorf("%s the Secret %s/%s: %w", verb, l.options.Namespace, l.options.Name, err)
	}
	secret, err := l.secrets.Get(ctx, l.options.Name, metav1.GetOptions{})
	if err != nil {
		return fail("read", err)
	}
	b, err := parse(secret.Data)
	if err == nil {
		err = b.check(l.options.Clock.Now(), l.options.serverName())
	}
	if err != nil {
		return fail("use", err)
	}
	if before := l.current.Load(); before != nil && before.Leaf.Equal(b.serving.Certificate) {
		return nil
	}
	l.current.Store(b.tlsCertificate())
	l.log.Info("Webhook certificate loaded", keyExpires, b.serving.NotAfter)
	return nil
}
