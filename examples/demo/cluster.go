package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strings"
	"time"

	"k8s.io/apiextensions-apiserver/pkg/client/clientset/clientset"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"

	"github.com/dynamic-controller/engine/test/cluster"
)

// label is what makes the platform serve a type.
const label = "platform.example.com/serve"

// theCluster is where the demonstration takes place, as one of its users sees it.
type theCluster struct {
	kubeconfig string // what KUBECONFIG has to be to use it
	crds       clientset.Interface
	dynamic    dynamic.Interface
	own        *cluster.Cluster // nil if it is somebody else's
	defined    []definedType    // what there is to put away
}

// openCluster takes the cluster of KUBECONFIG, or starts one if that is not set.
func openCluster(ctx context.Context, say func(string, ...any)) (_ *theCluster, err error) {
	c := &theCluster{kubeconfig: os.Getenv(clientcmd.RecommendedConfigPathEnvVar)}
	var cfg *rest.Config
	if c.kubeconfig != "" {
		say("taking the cluster of KUBECONFIG=%s", c.kubeconfig)
		rules := clientcmd.NewDefaultClientConfigLoadingRules()
		cfg, err = clientcmd.NewNonInteractiveDeferredLoadingClientConfig(rules, nil).ClientConfig()
		if clientcmd.IsEmptyConfig(err) {
			err = errors.New("there is no such file, or nothing in it")
		}
		if err != nil {
			return nil, fmt.Errorf("KUBECONFIG=%s: %w", c.kubeconfig, err)
		}
		cfg.QPS = -1
	} else {
		say("starting a control plane: kube-apiserver and etcd")
		c.own, err = cluster.Start(ctx, cluster.Options{})
		if err != nil {
			return nil, err
		}
		c.kubeconfig, cfg = c.own.Kubeconfig(), c.own.Config()
	}
	if err := c.connect(ctx, say, cfg); err != nil {
		return nil, errors.Join(err, c.close())
	}
	return c, nil
}

func (c *theCluster) connect(ctx context.Context, say func(string, ...any), cfg *rest.Config) (err error) {
	if c.crds, err = clientset.NewForConfig(cfg); err != nil {
		return err
	}
	if c.dynamic, err = dynamic.NewForConfig(cfg); err != nil {
		return err
	}
	const patience = 10 * time.Second
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	version, err := c.crds.Discovery().ServerVersionWithContext(ctx)
	if err != nil {
		return fmt.Errorf("the cluster at %s: %w", cfg.Host, err)
	}
	say("kube-apiserver %s is ready at %s", version.GitVersion, cfg.Host)
	return c.refuseTypesOfOthers(ctx)
}

// refuseTypesOfOthers makes sure that the platform, which serves all types with the label, finds none but those of the
// demonstration.
func (c *theCluster) refuseTypesOfOthers(ctx context.Context) error {
	crds, err := c.crds.ApiextensionsV1().CustomResourceDefinitions().List(ctx, metav1.ListOptions{})
	if err != nil {
		return err
	}
	var inTheWay []string
	for _, crd := range crds.Items {
		if crd.Labels[label] == "true" || crd.Spec.Group == group {
			inTheWay = append(inTheWay, crd.Name)
		}
	}
	if len(inTheWay) > 0 {
		return fmt.Errorf("the cluster has types that a platform serves, or that an earlier demonstration has left: %s", strings.Join(inTheWay, ", "))
	}
	return nil
}

// close puts away what was made: the cluster, or on somebody else's the types with their objects.
func (c *theCluster) close() error {
	if c.own != nil {
		return c.own.Stop()
	}
	const patience = 30 * time.Second
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	var errs []error
	for _, t := range c.defined {
		err := c.crds.ApiextensionsV1().CustomResourceDefinitions().Delete(ctx, t.name(), metav1.DeleteOptions{})
		if err == nil {
			err = see(ctx, t.gone(c))
		}
		if err != nil && !apierrors.IsNotFound(err) {
			errs = append(errs, fmt.Errorf("deleting the type %s: %w", t.name(), err))
		}
	}
	return errors.Join(errs...)
}
