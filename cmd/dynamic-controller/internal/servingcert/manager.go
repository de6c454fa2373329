package servingcert

import (
	"bytes"
	"context"
	"crypto/x509"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/go-logr/logr"
	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	admissionregistrationclient "k8s.io/client-go/kubernetes/typed/admissionregistration/v1"
	coreclient "k8s.io/client-go/kubernetes/typed/core/v1"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/util/cert"
)

// manageInterval is the interval at which a Manager checks the Secret and the configuration.
const manageInterval = time.Minute

// Manager keeps the certificate up to date. Only the leader runs it.
type Manager struct {
	log     logr.Logger
	options Options
	secrets coreclient.SecretInterface
	configs admissionregistrationclient.ValidatingWebhookConfigurationInterface
	problem string // last logged problem
}

// NewManager returns a Manager that uses fenced for all requests.
func NewManager(log logr.Logger, fenced *rest.Config, options Options) (*Manager, error) {
	core, err1 := coreclient.NewForConfig(fenced)
	admission, err2 := admissionregistrationclient.NewForConfig(fenced)
	if err := errors.Join(err1, err2); err != nil {
		return nil, fmt.Errorf("create the clients for the webhook's certificate: %w", err)
	}
	return newManager(log, core.Secrets(options.Namespace), admission.ValidatingWebhookConfigurations(), options), nil
}

func newManager(
	log logr.Logger, secrets coreclient.SecretInterface,
	configs admissionregistrationclient.ValidatingWebhookConfigurationInterface, options Options,
) *Manager {
	return &Manager{log: log, options: options.withDefaults(), secrets: secrets, configs: configs}
}

// Run keeps the certificate up to date until ctx is cancelled. It implements replica.Runnable.
func (m *Manager) Run(ctx context.Context) error {
	m.problem = "" // each term logs the problem again
	m.options.repeat(ctx, manageInterval, func(attempt context.Context) error {
		err := m.sync(attempt)
		switch {
		case ctx.Err() != nil:
		case err == nil:
			m.problem = ""
		case apierrors.IsConflict(err): // the next attempt reads the object again
		case err.Error() != m.problem:
			m.problem = err.Error()
			m.log.Error(err, "Webhook certificate not up to date, will retry")
		}
		return err
	})
	return nil
}

// sync updates the Secret and then publishes its authorities in the configuration. A new authority does not issue
// certificates until a later call finds it in the configuration.
func (m *Manager) sync(ctx context.Context) error {
	config, webhook, configErr := m.config(ctx)
	var trusted []*x509.Certificate
	if webhook != nil {
		trusted, _ = cert.ParseCertsPEM(webhook.ClientConfig.CABundle)
	}
	next, err := m.syncSecret(ctx, trusted)
	if err != nil || configErr != nil {
		return errors.Join(err, configErr)
	}
	authorities, err := next.caBundle()
	if err != nil || bytes.Equal(authorities, webhook.ClientConfig.CABundle) {
		return err
	}
	return m.publish(ctx, config, authorities)
}

// config returns the ValidatingWebhookConfiguration and the webhook in it that Options.Webhook names.
func (m *Manager) config(ctx context.Context) (
	*admissionregistrationv1.ValidatingWebhookConfiguration, *admissionregistrationv1.ValidatingWebhook, error,
) {
	config, err := m.configs.Get(ctx, m.options.Name, metav1.GetOptions{})
	if err != nil {
		return nil, nil, fmt.Errorf("read the ValidatingWebhookConfiguration %s: %w", m.options.Name, err)
	}
	i := slices.IndexFunc(config.Webhooks, func(w admissionregistrationv1.ValidatingWebhook) bool {
		return w.Name == m.options.Webhook
	})
	if i < 0 {
		return nil, nil, fmt.Errorf("the ValidatingWebhookConfiguration %s has no webhook %s; add it", config.Name,
			m.options.Webhook)
	}
	return config, &config.Webhooks[i], nil
}

// syncSecret rotates the contents of the Secret if necessary, and returns them.
func (m *Manager) syncSecret(ctx context.Context, trusted []*x509.Certificate) (bundle, error) {
	fail := func(verb string, err error) (bundle, error) {
		return bundle{}, fmt.Errorf("%s the Secret %s/%s: %w", verb, m.options.Namespace, m.options.Name, err)
	}
	secret, err := m.secrets.Get(ctx, m.options.Name, metav1.GetOptions{})
	missing := apierrors.IsNotFound(err)
	if missing {
		secret = &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: m.options.Namespace, Name: m.options.Name}}
	} else if err != nil {
		return fail("read", err)
	}
	current, _ := parse(secret.Data) // malformed contents are replaced like missing ones
	next, err := rotate(current, m.options.Clock.Now(), m.options.serverName(), trusted)
	if err != nil || len(next.reasons) == 0 {
		return next.bundle, err
	}
	data, err := next.encode()
	if err != nil {
		return bundle{}, err
	}
	// Update fails with a conflict if the Secret has changed since it was read.
	secret = secret.DeepCopy()
	if secret.Data == nil {
		secret.Data = map[string][]byte{}
	}
	for key, value := range data {
		secret.Data[key] = value
	}
	if missing {
		_, err = m.secrets.Create(ctx, secret, metav1.CreateOptions{})
	} else {
		_, err = m.secrets.Update(ctx, secret, metav1.UpdateOptions{})
	}
	if err != nil {
		return fail("write", err)
	}
	m.log.Info("Webhook certificate rotated", keyReasons, next.reasons, keyExpires, next.serving.NotAfter,
		keyAuthorities, len(next.authorities()))
	return next.bundle, nil
}

// publish sets the authorities that API servers trust. Other fields of the configuration are not changed.
func (m *Manager) publish(
	ctx context.Context, config *admissionregistrationv1.ValidatingWebhookConfiguration, authorities []byte,
) error {
	patch, err := json.Marshal(map[string]any{
		"metadata": map[string]any{"resourceVersion": config.ResourceVersion},
		"webhooks": []any{map[string]any{
			"name": m.options.Webhook, "clientConfig": map[string]any{"caBundle": authorities},
		}},
	})
	if err != nil {
		return err
	}
	_, err = m.configs.Patch(ctx, config.Name, types.StrategicMergePatchType, patch, metav1.PatchOptions{})
	if err != nil {
		return fmt.Errorf("set the authorities in the ValidatingWebhookConfiguration %s: %w", config.Name, err)
	}
	m.log.Info("Webhook authorities published", keyConfiguration, config.Name)
	return nil
}
