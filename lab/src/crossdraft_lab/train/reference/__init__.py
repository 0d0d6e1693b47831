"""Training of the shipped reference pair, stage by stage: `crossdraft train reference`."""
