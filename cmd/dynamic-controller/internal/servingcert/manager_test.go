package servingcert

import (
	"context"
	"crypto/tls"
	"errors"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/go-logr/logr"
	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/kubernetes/fake"
	clienttesting "k8s.io/client-go/testing"
	clocktesting "k8s.io/utils/clock/testing"

	"github.com/dynamic-controller/engine/dynamiccontroller/replica"
)

var (
	_ replica.Runnable = &Manager{}
	_ replica.Runnable = &Loader{}
)

// rig has a Manager and a Loader with a fake API server and a fake clock.
type rig struct {
	*testing.T
	client  *fake.Clientset
	clock   *clocktesting.FakeClock
	manager *Manager
	loader  *Loader
}

func newRig(t *testing.T, objects ...runtime.Object) *rig {
	t.Helper()
	r := &rig{T: t, client: fake.NewClientset(objects...), clock: clocktesting.NewFakeClock(start)}
	r.restart()
	return r
}

// restart replaces the Manager and the Loader with those of another replica.
func (r *rig) restart() {
	options := Options{Namespace: "system", Name: "hook", Webhook: "blueprints.example.com", Clock: r.clock}
	secrets := r.client.CoreV1().Secrets("system")
	r.manager = newManager(logr.Discard(), secrets, r.client.AdmissionregistrationV1().ValidatingWebhookConfigurations(),
		options)
	r.loader = newLoader(logr.Discard(), secrets, options)
}

func configuration(webhooks ...string) *admissionregistrationv1.ValidatingWebhookConfiguration {
	c := &admissionregistrationv1.ValidatingWebhookConfiguration{ObjectMeta: metav1.ObjectMeta{Name: "hook"}}
	for _, name := range webhooks {
		c.Webhooks = append(c.Webhooks, admissionregistrationv1.ValidatingWebhook{
			Name: name, ClientConfig: admissionregistrationv1.WebhookClientConfig{
				Service: &admissionregistrationv1.ServiceReference{Namespace: "system", Name: "hook"},
			},
		})
	}
	return c
}

func emptySecret() *corev1.Secret {
	return &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: "system", Name: "hook"}}
}

func (r *rig) sync() {
	r.Helper()
	if err := r.manager.sync(r.Context()); err != nil {
		r.Fatal(err)
	}
}

// writes returns the verbs and resources of the writes since the last call.
func (r *rig) writes() (writes []string) {
	for _, action := range r.client.Actions() {
		if action.GetVerb() != "get" {
			writes = append(writes, action.GetVerb()+" "+action.GetResource().Resource)
		}
	}
	r.client.ClearActions()
	return writes
}

func (r *rig) secret() *corev1.Secret {
	r.Helper()
	secret, err := r.client.CoreV1().Secrets("system").Get(r.Context(), "hook", metav1.GetOptions{})
	if err != nil {
		r.Fatal(err)
	}
	return secret
}

// served returns the certificate that the Loader serves.
func (r *rig) served() *tls.Certificate {
	r.Helper()
	current, err := r.loader.GetCertificate(nil)
	if err != nil {
		r.Fatal(err)
	}
	return current
}

func (r *rig) wantWrites(want ...string) {
	r.Helper()
	if got := r.writes(); !slices.Equal(got, want) {
		r.Errorf("got writes %q, want %q", got, want)
	}
}

func TestManager_CreatesAndPublishesCertificates(t *testing.T) {
	for name, test := range map[string]struct {
		objects []runtime.Object
		first   string
	}{
		"in an empty Secret": {[]runtime.Object{emptySecret()}, "update secrets"},
		"without a Secret":   {nil, "create secrets"},
		"in a Secret with unrelated entries": {[]runtime.Object{&corev1.Secret{
			ObjectMeta: emptySecret().ObjectMeta,
			Data:       map[string][]byte{"tls.crt": []byte("x"), "other": []byte("kept")},
		}}, "update secrets"},
	} {
		t.Run(name, func(t *testing.T) {
			r := newRig(t, append(test.objects, configuration("other.example.com", "blueprints.example.com"))...)
			r.sync()
			r.wantWrites(test.first, "patch validatingwebhookconfigurations")
			r.sync()
			r.restart()
			r.sync()
			r.wantWrites()
			config, webhook, err := r.manager.config(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			secret := r.secret()
			if string(webhook.ClientConfig.CABundle) != string(secret.Data[caKey]) || webhook.ClientConfig.Service == nil {
				t.Errorf("got webhook %+v", webhook)
			}
			if len(config.Webhooks) != 2 || config.Webhooks[0].ClientConfig.CABundle != nil {
				t.Errorf("another webhook was changed: %+v", config.Webhooks)
			}
			if test.objects != nil && len(test.objects[0].(*corev1.Secret).Data) > 0 && string(secret.Data["other"]) != "kept" {
				t.Error("another entry of the Secret was removed")
			}
			if err := r.loader.load(t.Context()); err != nil {
				t.Fatal(err)
			}
			if r.served().Leaf.VerifyHostname("hook.system.svc") != nil {
				t.Error("the certificate is for another name")
			}
		})
	}
}

func TestManager_RestoresOverwrittenAuthorities(t *testing.T) {
	r := newRig(t, emptySecret(), configuration("blueprints.example.com"))
	r.sync()
	r.writes()
	configs := r.client.AdmissionregistrationV1().ValidatingWebhookConfigurations()
	if _, err := configs.Update(t.Context(), configuration("blueprints.example.com"), metav1.UpdateOptions{}); err != nil {
		t.Fatal(err)
	}
	r.writes()
	r.sync()
	r.wantWrites("patch validatingwebhookconfigurations")
}

func TestManager_ReportsUnusableConfigurations(t *testing.T) {
	for want, objects := range map[string][]runtime.Object{
		`read the ValidatingWebhookConfiguration hook: validatingwebhookconfigurations.admissionregistration.k8s.io "hook" ` +
			`not found`: {emptySecret()},
		"the ValidatingWebhookConfiguration hook has no webhook blueprints.example.com; add it": {
			emptySecret(), configuration("other"),
		},
	} {
		r := newRig(t, objects...)
		if err := r.manager.sync(t.Context()); err == nil || err.Error() != want {
			t.Errorf("got %v, want %s", err, want)
		}
		r.wantWrites("update secrets") // the replicas can serve before the configuration exists
		if err := r.manager.sync(t.Context()); err == nil {
			t.Error("the second attempt succeeded")
		}
		r.wantWrites()
	}
}

// A new authority is created while the configuration cannot be read. It must not issue certificates yet.
func TestManager_IssuesCertificatesOnlyWithTrustedAuthorities(t *testing.T) {
	r := newRig(t, emptySecret(), configuration("blueprints.example.com"))
	r.sync()
	r.clock.SetTime(start.Add(200 * day))
	r.sync()
	certificate := string(r.secret().Data[servingKey])
	r.clock.SetTime(start.Add(244 * day))
	r.client.PrependReactor("patch", "*", func(clienttesting.Action) (bool, runtime.Object, error) {
		return true, nil, errors.New("broken")
	})
	for _, days := range []time.Duration{0, 17, 18} {
		r.clock.SetTime(start.Add((244 + days) * day))
		if err := r.manager.sync(t.Context()); err == nil {
			t.Fatal("the configuration was changed")
		}
		if string(r.secret().Data[servingKey]) != certificate {
			t.Fatalf("day %d: the certificate was renewed", 244+days)
		}
	}
	r.client.ReactionChain = r.client.ReactionChain[1:]
	r.sync() // publishes the authority
	r.sync()
	if string(r.secret().Data[servingKey]) == certificate {
		t.Error("the certificate was not renewed")
	}
}

// An operator or an injector copies the authorities from the Secret.
func TestManager_AcceptsAuthoritiesPublishedByOthers(t *testing.T) {
	r := newRig(t, emptySecret(), configuration("blueprints.example.com"))
	r.client.PrependReactor("patch", "*", func(clienttesting.Action) (bool, runtime.Object, error) {
		return true, nil, apierrors.NewForbidden(schema.GroupResource{}, "hook", nil)
	})
	publish := func() {
		t.Helper()
		if err := r.manager.sync(t.Context()); !apierrors.IsForbidden(err) {
			t.Errorf("got error %v, want an error about publishing the authorities", err)
		}
		config := configuration("blueprints.example.com")
		config.Webhooks[0].ClientConfig.CABundle = r.secret().Data[caKey]
		configs := r.client.AdmissionregistrationV1().ValidatingWebhookConfigurations()
		if _, err := configs.Update(t.Context(), config, metav1.UpdateOptions{}); err != nil {
			t.Fatal(err)
		}
		r.writes()
	}
	publish()
	r.sync()
	r.wantWrites()
	for _, days := range []time.Duration{61, 122, 183, 244} {
		certificate := string(r.secret().Data[servingKey])
		r.clock.SetTime(start.Add(days * day))
		if days == 244 { // the authority must be renewed, too
			publish()
			r.clock.SetTime(start.Add(days*day + settled))
		}
		r.sync()
		r.wantWrites("update secrets")
		if string(r.secret().Data[servingKey]) == certificate {
			t.Errorf("day %d: the certificate was not renewed", days)
		}
	}
}

func TestLoader_KeepsTheLastCertificate(t *testing.T) {
	r := newRig(t, emptySecret(), configuration("blueprints.example.com"))
	if _, err := r.loader.GetCertificate(nil); err == nil {
		t.Error("got a certificate before the Secret was read")
	}
	if err := r.loader.load(t.Context()); err == nil || !r.loader.Expires().IsZero() {
		t.Error("an empty Secret was loaded")
	}
	r.sync()
	if err := r.loader.load(t.Context()); err != nil {
		t.Fatal(err)
	}
	first := r.served()
	if got := r.loader.Expires(); !got.Equal(first.Leaf.NotAfter) {
		t.Errorf("the loaded certificate expires at %s, got %s", first.Leaf.NotAfter, got)
	}
	secrets := r.client.CoreV1().Secrets("system")
	if _, err := secrets.Update(t.Context(), emptySecret(), metav1.UpdateOptions{}); err != nil {
		t.Fatal(err)
	}
	if err := r.loader.load(t.Context()); err == nil || r.served() != first {
		t.Errorf("with an empty Secret: got %v", err)
	}
	foreign, err := rotate(bundle{}, start, "other.system.svc", nil)
	if err != nil {
		t.Fatal(err)
	}
	secret := emptySecret()
	secret.Data = encoded(t, foreign.bundle)
	if _, err := secrets.Update(t.Context(), secret, metav1.UpdateOptions{}); err != nil {
		t.Fatal(err)
	}
	if err := r.loader.load(t.Context()); err == nil || r.served() != first {
		t.Errorf("with a certificate for another name: got %v", err)
	}
	if err := secrets.Delete(t.Context(), "hook", metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	if err := r.loader.load(t.Context()); !apierrors.IsNotFound(err) || r.served() != first {
		t.Errorf("without a Secret: got %v", err)
	}
	r.sync()
	if err := r.loader.load(t.Context()); err != nil || r.served() == first {
		t.Errorf("with another Secret: got error %v or an outdated certificate", err)
	}
}

func TestRun_RenewsTheCertificate(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t, emptySecret(), configuration("blueprints.example.com"))
		ctx, cancel := context.WithCancel(t.Context())
		ended := make(chan error)
		for _, run := range []func(context.Context) error{r.loader.Run, r.manager.Run} {
			go func() { ended <- run(ctx) }()
			synctest.Wait() // the Loader finds no certificate
		}
		r.clock.Step(firstRetry)
		synctest.Wait()
		first := r.served()
		r.clock.Step(61 * day)
		synctest.Wait()
		r.clock.Step(loadInterval)
		synctest.Wait()
		if r.served() == first {
			t.Error("the certificate was not renewed")
		}
		cancel()
		for range 2 {
			if err := <-ended; err != nil {
				t.Error(err)
			}
		}
	})
}

func TestRun_RetriesSoonAfterAFailure(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var attempts []time.Duration
		began, ctx := time.Now(), t.Context()
		ctx, cancel := context.WithCancel(ctx)
		Options{}.withDefaults().repeat(ctx, manageInterval, func(context.Context) error {
			if attempts = append(attempts, time.Since(began)); len(attempts) == 100 {
				cancel()
			}
			if len(attempts) == 98 {
				return nil
			}
			return errors.New("broken")
		})
		if attempts[1] != firstRetry || attempts[2] != 3*firstRetry || attempts[97]-attempts[96] != manageInterval ||
			attempts[98]-attempts[97] != manageInterval || attempts[99]-attempts[98] != firstRetry {
			t.Errorf("got attempts at %v", attempts)
		}
	})
}
