package main

import (
	"cmp"
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"os"
	"strings"
	"time"

	"github.com/go-logr/logr"
	"github.com/spf13/cobra"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	"k8s.io/client-go/transport"

	"github.com/dynamic-controller/engine/cmd/dynamic-controller/internal/status"
	"github.com/dynamic-controller/engine/cmd/dynamic-controller/internal/statusclient"
	"github.com/dynamic-controller/engine/cmd/dynamic-controller/internal/waiting"
)

// Flags of the commands that read the status of a replica.
const (
	flagURL               = "url"
	flagPlatformNamespace = "platform-namespace"
	flagReplicaAuthority  = "replica-certificate-authority"
	flagReplicaServerName = "replica-server-name"
)

// statusOptions contains the flags of commands that read the status of a replica.
type statusOptions struct {
	clientOptions
	url               string
	lease             statusclient.Lease
	replicaAuthority  string // file with the certificate authority of a replica that is reached through the API server
	replicaServerName string
}

// forAPIServer returns the options for requests to the API server. A token from the flags is sent only to the replica.
// With --url, the flags for TLS apply only to the URL.
func (o *statusOptions) forAPIServer() *clientOptions {
	cleaned := o.clientOptions
	cleaned.overrides.AuthInfo.Token = ""
	if cluster := &cleaned.overrides.ClusterInfo; o.url != "" {
		cluster.CertificateAuthority, cluster.TLSServerName, cluster.InsecureSkipTLSVerify = "", "", false
	}
	return &cleaned
}

// connect returns a client for the replica, and the namespace from the flag or the context. A token from the flags is
// sent only to the replica, unless there are no other credentials. wrap wraps the transports of all requests.
func (o *statusOptions) connect(
	ctx context.Context, wrap transport.WrapperFunc,
) (c *statusclient.Client, namespace string, err error) {
	token := o.overrides.AuthInfo.Token
	if o.url != "" {
		return o.connectToURL(token, wrap)
	}
	settings, err := o.replicaTLS()
	if err != nil {
		return nil, "", err
	}
	cfg, namespace, err := o.forAPIServer().config()
	if err != nil {
		return nil, "", err
	}
	cfg.Timeout, _ = deadlines(cfg.Timeout)
	cfg.Wrap(wrap)
	credentials := withToken(cfg, token)
	if credentials != cfg {
		credentials.Wrap(wrap)
	}
	if token != "" && isAnonymous(cfg) {
		cfg = credentials
	}
	if _, err := checkConnection(ctx, logr.Discard(), cfg, cfg.Timeout); err != nil {
		return nil, "", err
	}
	c, err = statusclient.NewForLeader(ctx, cfg, credentials, o.lease, settings)
	return c, namespace, err
}

// connectToURL returns a client for --url. The flags for TLS then apply to the URL instead of the API server. A
// kubeconfig is used only for a token and the namespace, and is not required.
func (o *statusOptions) connectToURL(
	token string, wrap transport.WrapperFunc,
) (*statusclient.Client, string, error) {
	cluster := o.overrides.ClusterInfo
	settings := &tls.Config{
		ServerName: cluster.TLSServerName, InsecureSkipVerify: cluster.InsecureSkipTLSVerify, //nolint:gosec // a flag
	}
	if o.replicaAuthority != "" || o.replicaServerName != "" {
		return nil, "", fmt.Errorf("--%s: use --certificate-authority and --tls-server-name with --%s", flagReplicaAuthority,
			flagURL)
	}
	if as := &o.overrides.AuthInfo; as.Impersonate != "" || as.ImpersonateUID != "" || len(as.ImpersonateGroups) > 0 {
		return nil, "", statusclient.ErrImpersonation
	}
	if file := cluster.CertificateAuthority; file != "" {
		var err error
		if settings.RootCAs, err = readAuthority(file); err != nil {
			return nil, "", fmt.Errorf("--certificate-authority: %w", err)
		}
	}
	cfg, namespace, err := o.forAPIServer().config()
	if err != nil && token == "" {
		return nil, "", err
	}
	if err != nil {
		cfg, namespace = &rest.Config{}, o.overrides.Context.Namespace
		if namespace == "" {
			namespace = "default"
		}
	}
	credentials := withToken(cfg, token)
	credentials.Wrap(wrap)
	c, err := statusclient.NewForURL(o.url, credentials, settings)
	return c, namespace, err
}

// replicaTLS returns the TLS settings for a replica that is reached through the API server. They are nil if the
// certificate of the replica is not verified.
func (o *statusOptions) replicaTLS() (*tls.Config, error) {
	if o.replicaAuthority == "" && o.replicaServerName == "" {
		return nil, nil //nolint:nilnil // nil is documented
	}
	if o.replicaAuthority == "" || o.replicaServerName == "" {
		return nil, fmt.Errorf("--%s and --%s must be set together", flagReplicaAuthority, flagReplicaServerName)
	}
	roots, err := readAuthority(o.replicaAuthority)
	if err != nil {
		return nil, fmt.Errorf("--%s: %w", flagReplicaAuthority, err)
	}
	return &tls.Config{RootCAs: roots, ServerName: o.replicaServerName, MinVersion: tls.VersionTLS12}, nil
}

// readAuthority reads the certificates of a certificate authority.
func readAuthority(file string) (*x509.CertPool, error) {
	data, err := os.ReadFile(file)
	if err != nil {
		return nil, err
	}
	roots := x509.NewCertPool()
	if !roots.AppendCertsFromPEM(data) {
		return nil, errors.New("the file contains no certificate")
	}
	return roots, nil
}

// withToken returns the credentials for a replica: the token, if it is not empty, or else those of cfg.
func withToken(cfg *rest.Config, token string) *rest.Config {
	if token == "" {
		return cfg
	}
	credentials := rest.AnonymousClientConfig(cfg)
	credentials.BearerToken = token
	return credentials
}

// isAnonymous reports whether cfg contains no credentials.
func isAnonymous(cfg *rest.Config) bool {
	return cfg.BearerToken == "" && cfg.BearerTokenFile == "" && cfg.Username == "" && cfg.ExecProvider == nil &&
		cfg.AuthProvider == nil && cfg.CertFile == "" && len(cfg.CertData) == 0
}

// newReplicaCommand completes a command that reads the status of a replica. run gets a client and the namespace.
func newReplicaCommand(
	cmd *cobra.Command, o *statusOptions,
	run func(ctx context.Context, cmd *cobra.Command, args []string, c *statusclient.Client, namespace string) error,
) *cobra.Command {
	o.addFlags(cmd.Flags())
	cmd.Flags().Lookup("token").Usage = "Bearer token for the replica (default: that of the kubeconfig)"
	cmd.Flags().StringVar(&o.url, flagURL, "", "the `URL` of a replica, such as https://localhost:8443 (default: the "+
		"Pod of the leader, through the API server)")
	cmd.Flags().StringVar(&o.lease.Namespace, flagPlatformNamespace, "dynamic-controller-system",
		"the `NAMESPACE` of the leader's Lease and Pod")
	cmd.Flags().StringVar(&o.lease.Name, flagLeaseName, "dynamic-controller", "the `NAME` of the Lease")
	cmd.Flags().StringVar(&o.replicaAuthority, flagReplicaAuthority, "", "`FILE` with the certificate authority of the "+
		"replica, without --url (default: the certificate is not verified)")
	cmd.Flags().StringVar(&o.replicaServerName, flagReplicaServerName, "",
		"`NAME` in the certificate of the replica, without --url")
	completeFlags(cmd, func(cmd *cobra.Command, args []string, word string) ([]string, cobra.ShellCompDirective) {
		return o.forAPIServer().complete(cmd, args, word)
	})
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		if err := o.checkOutput(); err != nil {
			return err
		}
		timeout, err := clientcmd.ParseTimeout(cmp.Or(o.overrides.Timeout, "0"))
		if err != nil {
			return fmt.Errorf("--request-timeout: %w", err)
		}
		_, timeout = deadlines(timeout)
		ctx, cancel := context.WithTimeoutCause(cmd.Context(), timeout, fmt.Errorf("no response within %s", timeout))
		defer cancel()
		waits := waiting.Start(cmd.ErrOrStderr())
		defer waits.Stop()
		c, namespace, err := o.connect(ctx, waits.Wrap)
		if err != nil {
			return err
		}
		defer c.Close()
		return run(ctx, cmd, args, c, namespace)
	}
	return cmd
}

const replicaHelp = `
The status is read from the leader. Its Pod is found with the Lease, and a port is forwarded to it through the API
server, like kubectl port-forward. With --url, the status is read from the replica at the URL, and the flags for TLS
apply to the URL. The platform must run with --metrics-bind-address. After a second, the command reports on stderr which
request it is waiting for.

Without --url, the certificate of the replica is verified only with --replica-certificate-authority and
--replica-server-name. Otherwise, use a token that grants access only to the platform.

A replica accepts only bearer tokens. It receives the token from --token or, by default, the token from the kubeconfig,
including one from a credential plugin. To use the token of a ServiceAccount:

  --token "$(kubectl create token -n NAMESPACE SERVICEACCOUNT)"
`

func newStatusCommand() *cobra.Command {
	o := &statusOptions{}
	return newReplicaCommand(&cobra.Command{
		Use:   "status",
		Short: "Print a summary of the leader and of its problems",
		Long: `Print a summary of the leader and of its problems. With -o wide, it contains all problems. With
-o json or yaml, it contains everything that the replica serves at /status.
` + replicaHelp + `
The exit code is 0 if the platform has no problems, 1 if it has any, and 2 if the usage is wrong or the replica cannot
be reached. Objects that failed and will be retried are not a problem with the platform.`,
		Example: `  # Print a summary of the leader
  dynamic-controller status

  # Print a summary of one replica
  dynamic-controller status --url https://localhost:8443 --certificate-authority ca.crt

  # Print the number of failing objects
  dynamic-controller status -o json | jq .summary.failing`,
		Args:              cobra.NoArgs,
		ValidArgsFunction: cobra.NoFileCompletions,
	}, o, func(ctx context.Context, cmd *cobra.Command, _ []string, c *statusclient.Client, _ string) error {
		doc, err := c.Status(ctx)
		if err != nil {
			return err
		}
		w := cmd.OutOrStdout()
		if err := printAs(w, o.output, doc, func() { statusclient.PrintStatus(w, doc, o.output == "wide") }); err != nil {
			return err
		}
		return notHealthyIf(len(statusclient.Problems(doc)) > 0)
	})
}

func newTypesCommand() *cobra.Command {
	o := &statusOptions{}
	return newReplicaCommand(&cobra.Command{
		Use:   "types",
		Short: "Print the served types with their objects and queues",
		Long: `Print the served types with their objects and queues.
` + replicaHelp + `
The exit code is 0 if all types can be watched, 1 if not, and 2 if the usage is wrong or the replica
cannot be reached.`,
		Example: `  # Print the types
  dynamic-controller types

  # Print the types that cannot be watched
  dynamic-controller types -o json | jq '.types[] | select(.state != "Synced") | [.resource, .state, .message]'`,
		Args:              cobra.NoArgs,
		ValidArgsFunction: cobra.NoFileCompletions,
	}, o, func(ctx context.Context, cmd *cobra.Command, _ []string, c *statusclient.Client, _ string) error {
		doc, err := c.Status(ctx)
		if err != nil {
			return err
		}
		w := cmd.OutOrStdout()
		listed := struct {
			Types []status.Type `json:"types"`
		}{doc.Types}
		if err := printAs(w, o.output, listed, func() { statusclient.PrintTypes(w, doc, o.output == "wide") }); err != nil {
			return err
		}
		return notHealthyIf(statusclient.HasFailingTypes(doc))
	})
}

func newParkedCommand() *cobra.Command {
	o, retry := &statusOptions{}, false
	cmd := newReplicaCommand(&cobra.Command{
		Use:   "parked [TYPE[/NAME]]",
		Short: "Print the objects that are not reconciled until they change, or retry them",
		Long: `Print the parked objects with their errors. A parked object is not reconciled until it changes,
because retries cannot fix its error. Only the newest ten of each type are listed.

With --retry, the leader reconciles all parked objects again, including those that are not listed. Their retries start
over: an object is parked again after an error that a retry cannot fix, or after --queue-max-retries failures. The user
must be permitted to post to the path /status/retry.

TYPE is the plural of a served type, with or without the group, or its kind. The namespace of NAME is that of -n or of
the context.
` + replicaHelp + `
The exit code is 0 if no objects are parked, 1 if some are, and 2 if the usage is wrong, the replica cannot be reached,
or it is unknown whether the object is parked. With --retry, it is 0 if the leader has accepted the request.`,
		Example: `  # Print the parked objects
  dynamic-controller parked

  # Retry all parked objects of a type
  dynamic-controller parked websites.shop.example.com --retry

  # Retry one object
  dynamic-controller parked websites/flowers -n shop --retry`,
		Args:              cobra.MaximumNArgs(1),
		ValidArgsFunction: o.completeParked,
	}, o, func(
		ctx context.Context, cmd *cobra.Command, args []string, c *statusclient.Client, namespace string,
	) error {
		wanted, err := retryRequest(args, namespace)
		if err != nil {
			return err
		}
		if retry {
			return retryParked(ctx, cmd, c, wanted, o.output)
		}
		doc, err := c.Status(ctx)
		if err != nil {
			return err
		}
		w := cmd.OutOrStdout()
		parked, err := statusclient.Select(doc, wanted)
		if err != nil {
			return err
		}
		listed := struct {
			Parked status.Parked `json:"parked"`
		}{parked}
		if err := printAs(w, o.output, listed, func() {
			statusclient.PrintParked(w, &parked, doc.Time, o.output == "wide")
		}); err != nil {
			return err
		}
		return notHealthyIf(parked.Total > 0)
	})
	cmd.Flags().BoolVar(&retry, "retry", false, "reconcile the parked objects again")
	return cmd
}

// completeParked completes TYPE/NAME with the parked objects that the replica lists.
func (o *statusOptions) completeParked(
	cmd *cobra.Command, args []string, word string,
) ([]string, cobra.ShellCompDirective) {
	const timeout = 3 * time.Second
	if len(args) > 0 {
		return nil, cobra.ShellCompDirectiveNoFileComp
	}
	ctx, cancel := context.WithTimeout(cmd.Context(), timeout)
	defer cancel()
	c, namespace, err := o.connect(ctx, nil)
	if err != nil {
		return nil, cobra.ShellCompDirectiveNoFileComp
	}
	defer c.Close()
	doc, err := c.Status(ctx)
	if err != nil {
		return nil, cobra.ShellCompDirectiveNoFileComp
	}
	const directive = cobra.ShellCompDirectiveNoFileComp | cobra.ShellCompDirectiveNoSpace // a slash can follow
	return statusclient.Complete(doc, word, namespace), directive
}

// retryRequest returns the request that the arguments describe.
func retryRequest(args []string, namespace string) (wanted status.RetryRequest, err error) {
	if len(args) == 0 {
		return wanted, nil
	}
	typeName, name, hasName := strings.Cut(args[0], "/")
	if typeName == "" || hasName && name == "" || strings.Contains(name, "/") {
		return wanted, fmt.Errorf("%q: must be TYPE or TYPE/NAME, for example websites/flowers", args[0])
	}
	wanted.Type = typeName
	if hasName {
		wanted.Namespace, wanted.Name = namespace, name
	}
	return wanted, nil
}

func retryParked(
	ctx context.Context, cmd *cobra.Command, c *statusclient.Client, wanted status.RetryRequest, output string,
) error {
	if wanted.Type != "" {
		doc, err := c.Status(ctx)
		if err != nil {
			return err
		}
		if wanted.Type, err = statusclient.Resolve(doc, wanted.Type); err != nil {
			return err
		}
	}
	retried, err := c.Retry(ctx, wanted)
	if err != nil {
		return err
	}
	w := cmd.OutOrStdout()
	return printAs(w, output, status.RetryResponse{Retried: retried}, func() {
		fmt.Fprintf(w, "Retrying parked objects: %d\n", retried)
	})
}

// notHealthyIf returns errNotHealthy if there are problems.
func notHealthyIf(problems bool) error {
	if problems {
		return errNotHealthy
	}
	return nil
}
