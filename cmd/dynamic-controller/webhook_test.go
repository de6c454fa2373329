package main

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"net"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"testing/synctest"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/dynamic"

	"github.com/dynamic-controller/engine/cmd/dynamic-controller/internal/webhook"
	"github.com/dynamic-controller/engine/test/webhookservice"
)

// webhookArgs returns the arguments that enable the webhook of a test.
func (a *api) webhookArgs() []string {
	return []string{"--webhook-bind-address", "127.0.0.1:0", "--webhook-name", a.namespace}
}

// installWebhook makes the API server call the webhook of the processes until the test ends. The addresses function can
// be called concurrently.
func (a *api) installWebhook(addresses func() []string) {
	a.Helper()
	service, err := webhookservice.Listen(addresses)
	if err != nil {
		a.Fatal(err)
	}
	a.Cleanup(service.Close)
	const timeout = 5
	err = webhookservice.Install(a.Context(), a.kube, platformNamespace, a.namespace, service.Port(), timeout)
	if err != nil {
		a.Fatal(err)
	}
	a.Cleanup(func() {
		ctx := context.WithoutCancel(a.Context())
		if err := webhookservice.Uninstall(ctx, a.kube, platformNamespace, a.namespace); err != nil {
			a.Error(err)
		}
	})
}

// installWebhookOf makes the API server call the webhook of one process until the test ends.
func (a *api) installWebhookOf(p *process) {
	a.Helper()
	addresses := []string{p.webhookAddress()}
	a.installWebhook(func() []string { return addresses })
}

func (p *process) webhookAddress() string {
	p.Helper()
	p.waitLog(line{Msg: "Listening", Endpoint: flagWebhook})
	return p.logged(line{Msg: "Listening", Endpoint: flagWebhook})[0].Address
}

// refusal checks that the webhook refuses a Blueprint in a dry run, with a message that contains the words.
func (a *api) refusal(text, words string) error {
	err := a.tryCreate(text)
	if !apierrors.IsInvalid(err) || !strings.Contains(err.Error(), refused) || !strings.Contains(err.Error(), words) {
		return fmt.Errorf("the Blueprint was not refused by the webhook with %q: %w", words, err)
	}
	return nil
}

// refused is the beginning of the API server's errors for Blueprints that the webhook refuses.
const refused = `admission webhook "` + webhook.Name + `" denied the request: `

// warnings collects warnings from the API server.
type warnings struct {
	mu   sync.Mutex // guards text
	text []string
}

// HandleWarningHeader implements rest.WarningHandler.
func (w *warnings) HandleWarningHeader(_ int, _, text string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.text = append(w.text, text)
}

// take returns the warnings since the last call.
func (w *warnings) take() []string {
	w.mu.Lock()
	defer w.mu.Unlock()
	taken := w.text
	w.text = nil
	return taken
}

// endlessListener accepts any number of connections.
type endlessListener struct{ net.Listener }

func (endlessListener) Accept() (net.Conn, error) {
	conn, _ := net.Pipe()
	return conn, nil
}

func TestWebhook_LimitsItsConnections(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		listener := secure(endlessListener{}, nil)
		accepted := make(chan net.Conn, 2*maxConnections)
		go func() {
			for range maxConnections + 1 {
				conn, err := listener.Accept()
				if err != nil {
					t.Error(err)
				}
				accepted <- conn
			}
		}()
		synctest.Wait()
		if n := len(accepted); n != maxConnections {
			t.Fatalf("got %d accepted connections, want %d", n, maxConnections)
		}
		(<-accepted).Close()
		synctest.Wait()
		if n := len(accepted); n != maxConnections {
			t.Errorf("got %d connections after one was closed, want %d", n, maxConnections)
		}
	})
}

var dryRun = []string{metav1.DryRunAll}

// tryCreate creates a Blueprint with a dry run.
func (a *api) tryCreate(text string) error {
	obj := a.read(text)
	_, err := a.client(obj).Create(a.Context(), obj, metav1.CreateOptions{DryRun: dryRun})
	return err
}

func TestWebhook_RejectsWithTheMessageOfTheCondition(t *testing.T) {
	a := newAPI(t)
	seen := &warnings{}
	cfg := a.cluster.Config()
	cfg.WarningHandler = seen
	var err error
	if a.dynamic, err = dynamic.NewForConfig(cfg); err != nil {
		t.Fatal(err)
	}
	p := startServing(t, a.cluster.Kubeconfig(), a.webhookArgs()...)

	// Store the Blueprint before the webhook is installed.
	wrong := changed(websites, change{"${self.spec.text}", "${self.spec.txt}"}, change{"kind: Service", "kind: Servise"})
	a.apply(wrong)
	condition := a.waitBlueprint("websites", is("Accepted", "False", "unknown field \"txt\"", "unknown kind Servise"))
	want := refused + meta.FindStatusCondition(conditions(condition), "Accepted").Message
	a.installWebhookOf(p)
	again := strings.Replace(wrong, "name: websites.GROUP", "name: again.GROUP", 1)
	eventually(t, func() error { return a.refusal(again, "unknown field \"txt\"") })
	obj := a.read(again)
	blueprints := a.client(obj)
	for name, request := range map[string]func() error{
		"create":      func() error { _, err := blueprints.Create(t.Context(), obj, metav1.CreateOptions{}); return err },
		"create, dry": func() error { return a.tryCreate(again) },
		"apply":       func() error { _, err := a.tryApply(again); return err },
		"apply, dry": func() error {
			_, err := blueprints.Apply(t.Context(), obj.GetName(), obj,
				metav1.ApplyOptions{FieldManager: "test", Force: true, DryRun: dryRun})
			return err
		},
		"change to a stored Blueprint": func() error {
			_, err := a.tryApply(strings.Replace(wrong, "{text: ", "{more: a, text: ", 1))
			return err
		},
	} {
		if err := request(); !apierrors.IsInvalid(err) || err.Error() != want {
			t.Errorf("%s: got error %v, want %s", name, err, want)
		}
	}
	if _, err := a.get(blueprintVersion, "Blueprint", "again."+a.group); !apierrors.IsNotFound(err) {
		t.Errorf("a rejected Blueprint was stored: %v", err)
	}
	a.annotate(blueprintVersion, "Blueprint", "websites."+a.group, "example.com/note", "x")

	seen.take()
	if err := a.tryCreate(changed(again, change{"${self.spec.txt}", "${self.spec.text}"})); err != nil {
		t.Error(err)
	}
	if got := seen.take(); !slices.Equal(got, []string{
		"the Blueprint is not accepted at the moment, with the reason Invalid:",
		"spec.resources[2].template: unknown kind Servise in v1; the Blueprint will be checked again once the kind exists",
	}) {
		t.Errorf("got warnings %q", got)
	}
	a.apply(websites)
	if got := seen.take(); len(got) > 0 {
		t.Errorf("got warnings %q for a valid Blueprint", got)
	}
	a.waitBlueprint("websites", is("Accepted", "True"))

	p.stop(syscall.SIGTERM)
	if err := a.tryCreate(again); err != nil {
		t.Errorf("without the webhook: got error %v", err)
	}
}

func TestWebhook_EveryReplicaServesIt(t *testing.T) {
	a := newAPI(t)
	args := slices.Concat(localMetrics, a.webhookArgs())
	leader := startServing(t, a.cluster.Kubeconfig(), args...)
	const expiry = "dynamiccontroller_webhook_certificate_expiration_timestamp_seconds "
	leader.wantMetrics(expiry + "0\n")
	a.installWebhookOf(leader)
	standby := startReplica(t, a.cluster.Kubeconfig(), args...)
	var served []*x509.Certificate
	for _, p := range []*process{leader, standby} {
		p.waitLog(line{Msg: "Webhook certificate loaded"})
		secret, err := a.kube.CoreV1().Secrets(platformNamespace).Get(t.Context(), a.namespace, metav1.GetOptions{})
		if err != nil {
			t.Fatal(err)
		}
		roots := x509.NewCertPool()
		roots.AppendCertsFromPEM(secret.Data["ca.crt"])
		conn, err := tls.Dial("tcp", p.webhookAddress(), &tls.Config{
			RootCAs: roots, ServerName: a.namespace + "." + platformNamespace + ".svc",
		})
		if err != nil {
			t.Fatal(err)
		}
		certificate := conn.ConnectionState().PeerCertificates[0]
		served = append(served, certificate)
		p.wantMetrics(expiry + strconv.FormatFloat(float64(certificate.NotAfter.Unix()), 'g', -1, 64))
		conn.Close()
	}
	if !served[0].Equal(served[1]) {
		t.Error("the replicas serve different certificates")
	}
	if n := len(standby.logged(line{Msg: "Webhook certificate rotated"})); n > 0 {
		t.Error("the standby rotated the certificate")
	}
	leader.stop(syscall.SIGTERM)
	standby.waitLog(line{Msg: "Started leading"})
	standby.stop(syscall.SIGTERM)
	if n := len(standby.logged(line{Msg: "Webhook certificate rotated"})); n > 0 {
		t.Error("the next leader rotated the certificate")
	}
}
