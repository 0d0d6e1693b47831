"""Training: from the synthetic road world to the shipped reference pair."""
