package main

import (
	"bytes"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/tools/clientcmd"

	"github.com/dynamic-controller/engine/cmd/dynamic-controller/internal/webhook"
)

// admission returns an AdmissionReview of a new Blueprint with the given spec.
func admission(spec string) string {
	return `{"apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview", "request": {"uid": "u", "operation": "CREATE",
		"kind": {"group": "platform.example.com", "version": "v1alpha1", "kind": "Blueprint"},
		"object": {"apiVersion": "platform.example.com/v1alpha1", "kind": "Blueprint", "metadata": {"name": "a"}, "spec": ` +
		spec + `}}}`
}

// directRequest is a request to the webhook's port.
type directRequest struct {
	method, path, contentType, body string // by default, an AdmissionReview is posted as the API server does
	code                            int
	want                            string // in the response
}

// send returns the response to the request.
func (r directRequest) send(client *http.Client, address string) (code int, body string, err error) {
	for field, value := range map[*string]string{
		&r.method: http.MethodPost, &r.path: webhook.Path + "?timeout=1s", &r.contentType: "application/json",
	} {
		if *field == "" {
			*field = value
		}
	}
	request, err := http.NewRequest(r.method, "https://"+address+r.path, strings.NewReader(r.body))
	if err != nil {
		return 0, "", err
	}
	request.Header.Set("Content-Type", r.contentType)
	response, err := client.Do(request)
	if err != nil {
		return 0, "", err
	}
	defer response.Body.Close()
	data, err := io.ReadAll(response.Body)
	return response.StatusCode, string(data), err
}

// A client that is not the API server gets short responses, and cannot stop the platform.
func TestSecurity_DirectRequestsToTheWebhook(t *testing.T) {
	a := newAPI(t)
	p := startServing(t, a.cluster.Kubeconfig(), a.webhookArgs()...)
	a.installWebhookOf(p)
	wrong := changed(websites, change{"${self.spec.text}", "${self.spec.txt}"})
	isRefused := func() error { return a.refusal(wrong, `unknown field "txt"`) }
	eventually(t, isRefused)
	unverified := &tls.Config{InsecureSkipVerify: true}
	client := &http.Client{Timeout: waitTimeout, Transport: &http.Transport{
		DisableKeepAlives: true, TLSClientConfig: unverified,
	}}

	const depth = 9000
	deep := strings.Repeat(`{"a":`, depth) + "1" + strings.Repeat("}", depth)
	for name, request := range map[string]directRequest{
		"a large body": {
			body: admission(`"` + strings.Repeat("a", 7<<20) + `"`), code: http.StatusRequestEntityTooLarge,
			want: "the body is larger than 7340032 bytes",
		},
		"a review of another type": {
			body: `{"apiVersion": "admission.k8s.io/v1", "kind": "` + strings.Repeat("Other", 1<<20) + `"}`,
			code: http.StatusBadRequest, want: `the body must be an AdmissionReview in admission.k8s.io/v1, got "OtherOther`,
		},
		"a review of another kind": {
			body: strings.Replace(admission("{}"), `"kind": "Blueprint"}`, `"kind": "Secret"}`, 1),
			code: http.StatusBadRequest, want: "only platform.example.com/v1alpha1, Kind=Blueprint can be reviewed",
		},
		"another content type": {
			contentType: "application/vnd.kubernetes.protobuf", body: admission("{}"), code: http.StatusUnsupportedMediaType,
			want: "the content type must be application/json",
		},
		"another method": {method: http.MethodGet, code: http.StatusMethodNotAllowed, want: "the method must be POST"},
		"another path":   {path: "/metrics", code: http.StatusNotFound, want: "404 page not found"},
		"a nested body": {
			body: strings.Repeat("[", 1<<20), code: http.StatusBadRequest, want: "decode the body: ",
		},
		"a nested template": {
			body: admission(`{"type": {"group": "a.com", "version": "v1", "kind": "A",
				"schema": {"properties": {"spec": {"type": "object"}}}},
				"resources": [{"id": "a", "template": ` + deep + `}]}`),
			code: http.StatusOK, want: `"message":"spec.resources[0].template: has more than 64 levels"`,
		},
	} {
		eventually(t, func() error { // on a busy machine, a check can take too long, so that the response is another one
			code, body, err := request.send(client, p.webhookAddress())
			if most := 33 << 10; len(body) > most { // the maximum size of the message of a condition, and the rest
				t.Errorf("%s: the response has %d bytes", name, len(body))
			}
			if err != nil || code != request.code || !strings.Contains(body, request.want) {
				got := fmt.Errorf("%s: got %d, %.300s; want %d, %s", name, code, body, request.code, request.want)
				return errors.Join(got, err)
			}
			return nil
		})
	}
	if err := isRefused(); err != nil {
		t.Error(err)
	}

	slow := a.openSlowConnections(p, unverified)
	eventually(t, func() error {
		code, body, err := directRequest{body: admission("{}")}.send(client, p.webhookAddress())
		if code != http.StatusServiceUnavailable || body != "too many requests are being handled; try again\n" {
			return errors.Join(fmt.Errorf("got %d, %s", code, body), err)
		}
		return nil
	})
	for range 2 * maxConnections {
		conn, err := net.Dial("tcp", p.webhookAddress())
		if err != nil {
			t.Fatal(err)
		}
		slow = append(slow, conn)
	}
	if code, body := p.request(flagHealth, "/readyz"); code != http.StatusOK {
		t.Errorf("/readyz returned %d, %s", code, body)
	}
	a.apply(websites)
	a.waitBlueprint("websites", is("Accepted", "True"), is("Serving", "True"))
	a.closedByServer(slow[:maxConnections/2])
	for _, conn := range slow {
		conn.Close()
	}
	eventually(t, isRefused)
	if code, body := p.request(flagHealth, "/readyz"); code != http.StatusOK {
		t.Errorf("/readyz returned %d, %s", code, body)
	}
}

// openSlowConnections begins as many requests as the webhook handles at the same time, and sends parts of their bodies.
func (a *api) openSlowConnections(p *process, config *tls.Config) (slow []net.Conn) {
	a.Helper()
	for range 4 {
		conn, err := tls.Dial("tcp", p.webhookAddress(), config)
		if err == nil {
			_, err = io.WriteString(conn, "POST "+webhook.Path+" HTTP/1.1\r\nHost: a\r\nContent-Type: application/json\r\n"+
				"Content-Length: 1000\r\n\r\n{")
		}
		if err != nil {
			a.Fatal(err)
		}
		slow = append(slow, conn)
	}
	return slow
}

// closedByServer waits until the server has closed the connections.
func (a *api) closedByServer(connections []net.Conn) {
	a.Helper()
	for _, conn := range connections {
		_ = conn.SetReadDeadline(time.Now().Add(waitTimeout))
		data, err := io.ReadAll(io.LimitReader(conn, 1<<20))
		if errors.Is(err, os.ErrDeadlineExceeded) || len(data) > 1<<10 {
			a.Errorf("got %d bytes: %.300q, %v", len(data), data, err)
		}
	}
}

// observer is an author who can only create Blueprints.
type observer struct {
	*api
	warnings *warnings
}

func (a *api) observer() *observer {
	a.Helper()
	cfg, err := clientcmd.BuildConfigFromFlags("", a.account(a.namespace+"-observer",
		rule("create", "platform.example.com", "blueprints")))
	if err != nil {
		a.Fatal(err)
	}
	o := &observer{api: new(*a), warnings: &warnings{}}
	cfg.WarningHandler, cfg.QPS = o.warnings, -1
	if o.dynamic, err = dynamic.NewForConfig(cfg); err != nil {
		a.Fatal(err)
	}
	return o
}

// response returns everything that a dry run shows.
func (o *observer) response(text string) string {
	o.Helper()
	o.warnings.take()
	var shown bytes.Buffer
	if err := o.tryCreate(text); err != nil {
		fmt.Fprintln(&shown, err)
	}
	for _, warning := range o.warnings.take() {
		fmt.Fprintln(&shown, "warning:", warning)
	}
	return shown.String()
}

// The response to a dry run does not depend on whether another user's object exists, and does not show its content. The
// platform does not read the object either.
func TestSecurity_WebhookShowsNoObjects(t *testing.T) {
	a := newAPI(t)
	other := a.addNamespace(a.namespace + "-other")
	kubeconfig, proxy := a.proxied()
	p := startServing(t, kubeconfig, append(a.webhookArgs(), "--allow-platform-identity=false")...)
	a.installWebhookOf(p)
	for _, text := range foreign {
		a.apply(strings.ReplaceAll(text, "OTHER", other))
	}
	a.serviceAccount(a.namespace, "taken")
	const runsAs = "  serviceAccountName: NAME"
	a.apply(strings.ReplaceAll(making("First", configMap+"metadata: {name: "+foreignText+"}, data: {text: "+foreignText+
		"}}", runsAs), "NAME", "taken"))
	a.waitBlueprint("firsts", is("Accepted", "True"), is("Serving", "True"))
	o := a.observer()
	wrong := func(text string) string { return strings.Replace(text, "properties: {a: {", "properties: {c: {", 1) }
	reading := configMap + `metadata: {name: "${self.spec.a}"}}`
	const unknown = refused + `spec.resources[0].template.metadata.name: ${self.spec.a}: unknown field "a"`
	eventually(t, func() error {
		got := o.response(wrong(making("Second", reading, "  serviceAccountName: any")))
		if !strings.HasPrefix(got, unknown) {
			return fmt.Errorf("got %s", got)
		}
		return nil
	})

	calls := len(proxy.Calls())
	for name, text := range map[string]string{
		"the ServiceAccount": making("Second", reading, runsAs),
		"a Secret":           making("Second", reading+existing("Secret", "name: NAME", "existing.kind"), runsAs),
		"a namespace": making("Second", reading+
			existing("ConfigMap", "name: notes, namespace: NAME", "existing.data.text"), runsAs),
		"the namespace of a list": making("Second", reading+
			existing("ConfigMap", "selector: {}, namespace: NAME", "string(size(existing))"), runsAs),
		"an adopted Service": making("Second", reading+`
    - id: adopted
      template: {apiVersion: v1, kind: Service, metadata: {name: NAME}}`+adopt, runsAs),
	} {
		for _, named := range []string{"taken", "vault", "theirs", other, "missing"} {
			text := strings.ReplaceAll(text, "NAME", named)
			if got := o.response(text); got != "" {
				t.Errorf("%s is %s: got %s", name, named, got)
			}
			if got := o.response(wrong(text)); !strings.HasPrefix(got, unknown) || strings.Count(got, "\n") > 1 {
				t.Errorf("%s is %s: got %s", name, named, got)
			}
		}
	}
	// The name of another Blueprint is shown, because the author has to choose another type.
	first := "firsts." + a.group
	claiming := making("First", reading, "  serviceAccountName: any")
	if got, want := o.response(strings.Replace(claiming, "name: firsts", "name: others", 1)),
		"warning: the Blueprint is not accepted at the moment, with the reason TypeClaimed:\n"+
			"warning: spec.type: "+first+" is already claimed by Blueprint "+first+"; use another type\n"; got != want {
		t.Errorf("another Blueprint has the type: got %s, want %s", got, want)
	}
	for _, c := range proxy.Calls()[calls:] {
		isOwn := c.Namespace == platformNamespace && c.Name == a.namespace
		if slices.Contains([]string{"secrets", "configmaps", "services", "serviceaccounts", "namespaces"}, c.Resource) &&
			!isOwn && c.Verb != "watch" {
			t.Errorf("the platform sent %s %s/%s", c.Kind(), c.Namespace, c.Name)
		}
	}
	if strings.Contains(p.output(), foreignText) {
		t.Error("the log contains the content of another user's object")
	}
	if _, err := a.tenant().tryApply(making("Second", reading)); !apierrors.IsForbidden(err) {
		t.Errorf("a tenant without permissions got %v", err)
	}
}
