package main

import (
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/pprof"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/go-logr/logr"
	utilversion "k8s.io/apimachinery/pkg/util/version"
	"k8s.io/apiserver/pkg/endpoints/request"
	"k8s.io/apiserver/pkg/server/flagz"
	"k8s.io/apiserver/pkg/server/statusz"
	"k8s.io/client-go/rest"
	cliflag "k8s.io/component-base/cli/flag"
	"k8s.io/component-base/compatibility"
	"k8s.io/component-base/logs"

	"github.com/dynamic-controller/engine/cmd/dynamic-controller/internal/access"
	"github.com/dynamic-controller/engine/dynamiccontroller/replica"
)

// registerDiagnostics serves the metrics. Over TLS, it also serves the other diagnostics, and the API server decides
// who can read them.
func registerDiagnostics(
	log logr.Logger, r *replica.Replica, cfg *rest.Config, o *options, metrics http.Handler, pages pages,
) error {
	if o.metricsAddress == noAddress {
		return nil
	}
	if !o.metricsSecure {
		mux := http.NewServeMux()
		mux.Handle("GET "+pathMetrics, metrics)
		listener, err := listenLoopback(log, flagMetrics, o.metricsAddress)
		if err != nil {
			return err
		}
		return registerListener(log, r, flagMetrics, listener, mux)
	}
	controller, err1 := access.New(log, cfg)
	certificate, err2 := newServingCertificate(log, o.certFile, o.keyFile)
	if err2 != nil && o.certFile != "" {
		err2 = fmt.Errorf("--%s, --%s: %w", flagCertFile, flagKeyFile, err2)
	}
	if err := errors.Join(err1, err2); err != nil {
		return err
	}
	listener, err := listen(log, flagMetrics, o.metricsAddress)
	if err != nil {
		return err
	}
	handler := controller.Protect(newDiagnosticsMux(log, metrics, o.sections, o.verbosity, pages))
	return registerListener(log, r, flagMetrics, secure(listener, certificate.GetCertificate), handler)
}

// listenLoopback is like listen, but returns an error if the address is not a loopback address, for example because of
// the entry for localhost in /etc/hosts.
func listenLoopback(log logr.Logger, flag, address string) (net.Listener, error) {
	listener, err := listen(log, flag, address)
	if err != nil {
		return nil, err
	}
	if got := listener.Addr().String(); !isLoopback(got) {
		_ = listener.Close()
		return nil, fmt.Errorf("--%s: %s resolves to %s, which is not a loopback address: use 127.0.0.1 or --%s=true", flag,
			address, got, flagSecure)
	}
	return listener, nil
}

// isLoopback reports whether an address can only be reached from the same host.
func isLoopback(address string) bool {
	host, _, err := net.SplitHostPort(address)
	ip := net.ParseIP(host)
	return err == nil && (host == "localhost" || ip != nil && ip.IsLoopback())
}

// component is the name of the program in diagnostics and spans.
const component = "dynamic-controller"

// pathMetrics is the path of the metrics.
const pathMetrics = "/metrics"

// diagnosticsMux is a mux that records its paths.
type diagnosticsMux struct {
	http.ServeMux
	paths []string
}

// Handle registers the handler of a path.
func (m *diagnosticsMux) Handle(path string, handler http.Handler) {
	m.paths = append(m.paths, path)
	m.ServeMux.Handle(path, handler)
}

// pages contains handlers by path. They are served over TLS only.
type pages map[string]http.Handler

func newDiagnosticsMux(
	log logr.Logger, metrics http.Handler, flags cliflag.NamedFlagSets, level int, pages pages,
) *diagnosticsMux {
	m := &diagnosticsMux{}
	m.Handle(pathMetrics, metrics)
	for path, handler := range map[string]http.HandlerFunc{
		"/debug/pprof/": pprof.Index, "/debug/pprof/cmdline": pprof.Cmdline, "/debug/pprof/profile": pprof.Profile,
		"/debug/pprof/symbol": pprof.Symbol, "/debug/pprof/trace": pprof.Trace,
	} {
		m.Handle(path, withoutReadDeadline(handler))
	}
	m.Handle("/debug/flags/v", &verbosity{log: log, level: level})
	for path, handler := range pages {
		m.Handle(path, handler)
	}
	flagz.Install(m, component, flagz.NamedFlagSetsReader{FlagSets: flags})
	listed := append([]string{statusz.DefaultStatuszPath}, m.paths...)
	statusz.Install(m, component, statusz.NewRegistry(newProgramVersion(), statusz.WithListedPaths(listed)))
	return m
}

// withoutReadDeadline allows a handler to take longer than the time that clients have to send a request. Otherwise, the
// context of the request would be cancelled. Package pprof extends the write deadline itself.
func withoutReadDeadline(handler http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		_ = http.NewResponseController(w).SetReadDeadline(time.Time{})
		handler.ServeHTTP(w, r)
	})
}

// verbosity is the level of detail of the log, including that of client-go.
type verbosity struct {
	log   logr.Logger
	mu    sync.Mutex
	level int // guarded by mu
}

// ServeHTTP returns and sets the level.
func (v *verbosity) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	// At level 8, client-go logs the bodies of requests and responses, including Secrets.
	const maxLevel, maxBody = 7, 16
	switch r.Method {
	case http.MethodGet:
		v.mu.Lock()
		defer v.mu.Unlock()
		fmt.Fprintln(w, v.level)
	case http.MethodPut:
		body, err := io.ReadAll(http.MaxBytesReader(w, r.Body, maxBody))
		level, invalid := strconv.Atoi(strings.TrimSpace(string(body)))
		if err != nil || invalid != nil || level < 0 || level > maxLevel {
			http.Error(w, fmt.Sprintf("the body must be a number from 0 to %d", maxLevel), http.StatusBadRequest)
			return
		}
		name := ""
		if user, ok := request.UserFrom(r.Context()); ok {
			name = user.GetName()
		}
		if err := v.set(level, name); err != nil {
			http.Error(w, err.Error(), http.StatusInternalServerError)
			return
		}
		fmt.Fprintf(w, "successfully set verbosity to %d\n", level)
	default:
		http.Error(w, "the method must be GET or PUT", http.StatusMethodNotAllowed)
	}
}

// set sets the level and logs the change.
func (v *verbosity) set(level int, user string) error {
	v.mu.Lock()
	defer v.mu.Unlock()
	v.log.Info("Verbosity changed", "from", v.level, "to", level, "user", user)
	if _, err := logs.GlogSetter(strconv.Itoa(level)); err != nil {
		return err
	}
	v.level = level
	return nil
}

// programVersion implements the methods of an EffectiveVersion that statusz uses.
type programVersion struct {
	compatibility.EffectiveVersion
	version *utilversion.Version
}

// newProgramVersion returns the version of the program, or 0.0.0 for a build without a semantic version.
func newProgramVersion() programVersion {
	parsed, err := utilversion.ParseSemantic(ownBuildInfo().Version)
	if err != nil {
		parsed = utilversion.MustParse("0.0.0")
	}
	return programVersion{version: parsed}
}

func (v programVersion) BinaryVersion() *utilversion.Version { return v.version }

// EmulationVersion returns nil, because the program does not emulate other versions.
func (v programVersion) EmulationVersion() *utilversion.Version { return nil }
