package main

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// many is how many WebApps are written, besides the first.
const many = 20

func numbered(i int) string { return fmt.Sprintf("number-%d", i) }

// tell tells the story. Each line is said after what it says was seen.
func tell(ctx context.Context, say func(string, ...any), c *theCluster, p platform) error {
	chapters := []func(context.Context, func(string, ...any), *theCluster) error{
		define, writeMany, deleteChild, rollOut, breakIt,
		func(ctx context.Context, say func(string, ...any), c *theCluster) error {
			return takeOver(ctx, say, c, p)
		},
	}
	if d, onNodes := p.(*deployed); onNodes {
		chapters = append(chapters, d.drainNode, d.updatePods)
	}
	for _, chapter := range append(chapters, deleteBlueprint) {
		if err := chapter(ctx, say, c); err != nil {
			return err
		}
	}
	say("all of this was seen at the API server")
	return nil
}

// define applies the Blueprint while the platform runs, and an instance of its type.
func define(ctx context.Context, say func(string, ...any), c *theCluster) error {
	began := time.Now()
	generation, err := c.applyBlueprint(ctx)
	if err != nil {
		return err
	}
	applied := time.Now()
	if err := see(ctx, c.says(blueprints, blueprintName, "Serving", "True", generation, nil)); err != nil {
		return err
	}
	say("applied the Blueprint %s, as soon as the platform took one (%s): its type %s is served after %s",
		blueprintName, milliseconds(applied.Sub(began)), crdName, since(applied))
	began = time.Now()
	if generation, err = c.write(ctx, "first", "Hello"); err != nil {
		return err
	}
	if err := see(ctx, c.ready("first", generation)); err != nil {
		return err
	}
	say("made the WebApp first: it became a ConfigMap, a Service and a Deployment, and is Ready after %s", since(began))
	return nil
}

func writeMany(ctx context.Context, say func(string, ...any), c *theCluster) error {
	var took []time.Duration
	for i := range many {
		began := time.Now()
		generation, err := c.write(ctx, numbered(i), "Hello")
		if err != nil {
			return err
		}
		if err := see(ctx, c.ready(numbered(i), generation)); err != nil {
			return err
		}
		took = append(took, time.Since(began))
	}
	slices.Sort(took)
	say("made %d more, one by one; made -> Ready: %s in the middle, %s at most",
		many, milliseconds(took[len(took)/2]), milliseconds(took[len(took)-1]))
	return nil
}

func deleteChild(ctx context.Context, say func(string, ...any), c *theCluster) error {
	before, err := c.in(configMaps).Get(ctx, "first-page", metav1.GetOptions{})
	if err != nil {
		return err
	}
	began := time.Now()
	if err := c.in(configMaps).Delete(ctx, "first-page", metav1.DeleteOptions{}); err != nil {
		return err
	}
	if err := see(ctx, c.page("first", "Hello", string(before.GetUID()))); err != nil {
		return err
	}
	say("deleted the ConfigMap first-page: it is back after %s", since(began))
	return nil
}

// The text of the page's template, before and after.
const (
	pageText    = "${self.spec.greeting}, from"
	changedText = "${self.spec.greeting} and welcome, from"
)

func rollOut(ctx context.Context, say func(string, ...any), c *theCluster) error {
	began := time.Now()
	// The schema changes too, in a way that can be reverted.
	if _, err := c.applyBlueprint(ctx, pageText, changedText, "maxLength: 200", "maxLength: 200, description: What the page says."); err != nil {
		return err
	}
	for i := range many {
		if err := see(ctx, c.page(numbered(i), "Hello and welcome", "")); err != nil {
			return err
		}
	}
	if err := see(ctx, c.page("first", "Hello and welcome", "")); err != nil {
		return err
	}
	say("changed the Blueprint: all %d WebApps have what it says now after %s", many+1, since(began))
	return nil
}

// breakIt applies a Blueprint with a mistake, and mends it.
func breakIt(ctx context.Context, say func(string, ...any), c *theCluster) error {
	began := time.Now()
	generation, err := c.applyBlueprint(ctx, pageText, "${self.spec.greting} and welcome, from")
	if err != nil {
		return err
	}
	var message string
	if err := see(ctx, c.says(blueprints, blueprintName, "Accepted", "False", generation, &message)); err != nil {
		return err
	}
	say("broke the Blueprint: refused after %s. kubectl describe says", since(began))
	for line := range strings.Lines(message) {
		say("    %s", strings.TrimSpace(line))
	}
	began = time.Now()
	if _, err := c.write(ctx, "first", "Good day"); err != nil {
		return err
	}
	if err := see(ctx, c.page("first", "Good day and welcome", "")); err != nil {
		return err
	}
	say("what ran before keeps running: a changed WebApp has its new page after %s", since(began))
	if generation, err = c.applyBlueprint(ctx, pageText, changedText); err != nil {
		return err
	}
	return see(ctx, c.says(blueprints, blueprintName, "Accepted", "True", generation, nil))
}

// deleteBlueprint deletes it with all that it made: an orphan would be missed by nobody.
func deleteBlueprint(ctx context.Context, say func(string, ...any), c *theCluster) error {
	began := time.Now()
	if err := c.in(blueprints).Delete(ctx, blueprintName, metav1.DeleteOptions{}); err != nil {
		return err
	}
	for _, s := range []sight{
		c.gone(blueprints, blueprintName), c.typeGone(crdName),
		c.gone(configMaps, "first-page"), c.gone(services, "first"), c.gone(deployments, "first"),
	} {
		if err := seeWithin(ctx, deletionPatience, s); err != nil {
			return err
		}
	}
	say("deleted the Blueprint: %d WebApps, what they became and their type are gone after %s", many+2, since(began))
	return nil
}

// deletionPatience is long because kube-controller-manager sends 20 requests per second, and several for each WebApp: it
// deletes the ReplicaSets of the Deployments.
const deletionPatience = time.Minute

func since(began time.Time) string { return milliseconds(time.Since(began)) }

func milliseconds(d time.Duration) string { return fmt.Sprintf("%d ms", d.Milliseconds()) }

// play applies the Blueprint and leaves the user to it until ctx ends.
func play(ctx context.Context, say func(string, ...any), c *theCluster) error {
	if err := define(ctx, say, c); err != nil {
		return err
	}
	leader, err := c.leader(ctx)
	if err != nil {
		return err
	}
	fmt.Printf(`
Ready to be played with, until Ctrl-C. In another terminal:

  export KUBECONFIG=%s
  kubectl get blueprints,webapps
  kubectl get configmaps,services,deployments -l platform.example.com/parent
  kubectl patch webapp first --type merge -p '{"spec":{"greeting":"Good day"}}' && sleep 0.1 && kubectl get cm first-page -o yaml
  kubectl delete service first && sleep 0.1 && kubectl get service first
  kubectl edit blueprint %s && kubectl describe blueprint %s   # make a mistake, and read what it is
  kubectl get lease %s -n %s   # %s leads: kill -9 its process, and the other takes over

`, c.kubeconfig, blueprintName, blueprintName, leaseName, c.namespace, leader)
	<-ctx.Done()
	return context.Cause(ctx)
}
