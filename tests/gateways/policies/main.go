// Serves policies as Envoy Gateway does, with its own code: reads the path of a fixture of its translator from each line of
// standard input, hands the routes in it to its rate limit xDS server, and prints the policies as one line of JSON.
// `make gateways` builds it within Envoy Gateway's module, whose internal packages nothing outside of it can import.
//
// Usage: policies CONFIG_HOME, where `envoy-gateway certgen --local` has written certificates.
package main

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"os"

	"sigs.k8s.io/yaml"

	egv1a1 "github.com/envoyproxy/gateway/api/v1alpha1"
	"github.com/envoyproxy/gateway/internal/envoygateway/config"
	"github.com/envoyproxy/gateway/internal/globalratelimit/runner"
	"github.com/envoyproxy/gateway/internal/ir"
	"github.com/envoyproxy/gateway/internal/message"
	"github.com/envoyproxy/gateway/internal/xds/translator"
)

func main() {
	if err := serve(context.Background(), os.Args[1]); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

func serve(ctx context.Context, home string) error {
	server, err := config.New(os.Stderr, os.Stderr)
	if err != nil {
		return err
	}
	server.EnvoyGateway.Provider = &egv1a1.EnvoyGatewayProvider{
		Type: egv1a1.ProviderTypeCustom,
		Custom: &egv1a1.EnvoyGatewayCustomProvider{
			Infrastructure: &egv1a1.EnvoyGatewayInfrastructureProvider{
				Type: egv1a1.InfrastructureProviderTypeHost,
				Host: &egv1a1.EnvoyGatewayHostInfrastructureProvider{ConfigHome: &home},
			},
		},
	}
	routes := new(message.XdsIR)
	limits := runner.New(&runner.Config{Server: *server, XdsIR: routes, RunnerErrors: new(message.RunnerErrors)})
	if err := limits.Start(ctx); err != nil {
		return err
	}
	for lines := bufio.NewScanner(os.Stdin); lines.Scan(); {
		content, err := os.ReadFile(lines.Text())
		if err != nil {
			return err
		}
		fixture := new(ir.Xds)
		if err := yaml.Unmarshal(content, fixture); err != nil {
			return err
		}
		if len(fixture.HTTP) == 0 {
			// A fixture may also be a listener alone.
			listener := new(ir.HTTPListener)
			if err := yaml.Unmarshal(content, listener); err != nil {
				return err
			}
			fixture.HTTP = append(fixture.HTTP, listener)
		}
		policies := []string{}
		for _, policy := range translator.BuildRateLimitServiceConfig(fixture.HTTP) {
			text, err := translator.GetRateLimitServiceConfigStr(policy)
			if err != nil {
				return err
			}
			policies = append(policies, text)
		}
		routes.Store("fixture", &message.XdsIRWithContext{XdsIR: fixture, Context: ctx})
		if err := json.NewEncoder(os.Stdout).Encode(policies); err != nil {
			return err
		}
	}
	return nil
}
